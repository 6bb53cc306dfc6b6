"""Which large value of which task's result an object is, so that the task can make the same one again."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import ray
from ray._private.worker import global_worker

from hoplite.ray.forms import Form

__all__ = ["Origin", "next_origin", "parts_of", "taken_apart"]


class Origin(NamedTuple):
    """The `part`-th large value, in the order of pickling, of what a task returned."""

    task: str
    """The task's id in hex."""
    part: int


class _Thread(threading.local):
    attempt: tuple[Any, int] | None = None
    next_part = 0
    parts: list[tuple[Any, Form]] | None = None


_thread = _Thread()


def next_origin() -> Origin | None:
    """Of the next large value that this thread pickles as part of a result; None if no task can remake it.

    Those of actors cannot, as in Ray: nobody knows what the actor was like at the time.
    """
    if global_worker.mode != ray.WORKER_MODE or not global_worker.actor_id.is_nil():
        return None
    task = global_worker.current_task_id
    attempt = (task, global_worker.core_worker.get_current_task_attempt_number())
    if _thread.attempt != attempt:
        _thread.attempt, _thread.next_part = attempt, 0
    _thread.next_part += 1
    return Origin(task.hex(), _thread.next_part - 1)


def parts_of(outputs: list[Any]) -> list[tuple[Any, Form]]:
    """The large values in what a task returned, in order, with their forms."""
    _thread.parts = []
    try:
        for output in outputs:
            # As Ray would, but for what becomes of it.
            global_worker.get_serialization_context().serialize(output)
        return _thread.parts
    finally:
        _thread.parts = None


def taken_apart(value: Any, form: Form) -> bool:
    """Whether `value` is pickled only to be found by `parts_of`; then it is noted."""
    if _thread.parts is None:
        return False
    _thread.parts.append((value, form))
    return True
