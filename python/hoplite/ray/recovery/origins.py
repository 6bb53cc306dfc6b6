"""The origin of an object: the large value of a task's result that it is. Its task can rebuild it."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, NamedTuple

import ray
from ray._private.worker import global_worker

from hoplite.ray.settings import TRANSPARENT_VARIABLE
from hoplite.ray.values.forms import Form, spec_of

__all__ = ["Origin", "is_listing_only", "next_origin", "parts_of"]


class Origin(NamedTuple):
    """The `part`-th large value, in the order of pickling, of a task's result."""

    task: str
    """The task's id in hex."""
    part: int
    spec: str
    """The value's type and shape."""


class _Thread(threading.local):
    attempt: tuple[Any, int] | None = None
    next_part = 0
    parts: list[tuple[Any, Form]] | None = None


_thread = _Thread()


def next_origin(value: Any, form: Form) -> Origin | None:
    """The origin of `value`, which this thread pickles next as part of a result. None if no task can rebuild
    it.

    Results of actors have an origin if their methods are retried, as in Ray. If an actor runs several tasks
    at once, they have none: this thread does not know the task.
    """
    if global_worker.mode != ray.WORKER_MODE or not _is_retried():
        return None
    task = global_worker.current_task_id
    attempt = (task, global_worker.core_worker.get_current_task_attempt_number())
    if _thread.attempt != attempt:
        _thread.attempt, _thread.next_part = attempt, 0
    _thread.next_part += 1
    return Origin(task.hex(), _thread.next_part - 1, spec_of(value, form))


def _is_retried() -> bool:
    """Whether Ray would repeat the task that this thread of a worker runs, as far as is known here."""
    if global_worker.actor_id.is_nil():
        return True
    # Without hooks, nobody records the calls of methods.
    if threading.current_thread() is not threading.main_thread() or not os.environ.get(TRANSPARENT_VARIABLE):
        return False
    me = _me()
    method = global_worker.current_task_function_name.rpartition(".")[2]
    return bool(me._ray_method_max_task_retries.get(method) or me._ray_max_task_retries)


@functools.cache
def _me() -> Any:
    return ray.get_runtime_context().current_actor


def parts_of(output: Any) -> list[tuple[Any, Form]]:
    """The large values in what a task returned, in order, with their forms."""
    _thread.parts = []
    try:
        # Pickled as Ray would, but the pickle is dropped.
        global_worker.get_serialization_context().serialize(output)
        return _thread.parts
    finally:
        _thread.parts = None


def is_listing_only(value: Any, form: Form) -> bool:
    """Whether `value` is pickled only because `parts_of` lists large values. If so, it is listed."""
    if _thread.parts is None:
        return False
    _thread.parts.append((value, form))
    return True
