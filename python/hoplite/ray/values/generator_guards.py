"""Holds the guards of yielded items for a while, in the worker that made them.

Ray may ask a generator's caller whether it holds a guard before the caller has heard of the item. The caller
says no, and the object is deleted. So the worker holds the guard until the task ends. It does not hold it
longer, because it may get the item back as an argument. An actor that runs several tasks at once may get it
back earlier, so its items stay with Ray. See docs/decisions/0012-hoplite-on-ray.md.
"""

from __future__ import annotations

import collections
import functools
import inspect
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.worker import Worker, global_worker

__all__ = ["hold_yielded", "observe_task_ends", "yields_concurrently"]

SECONDS = 2.0
"""Longest time for which the guard of an item is held while its task goes on. A caller hears of an item far
sooner, even on a busy machine."""

Attempt = tuple[ray.TaskID, int]
"""A task, and the number of the attempt at running it."""


@dataclass(slots=True)
class _Item:
    guard: ray.ObjectRef
    attempt: Attempt
    until: float


_held: collections.deque[_Item] = collections.deque()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_original: Any = None


class _Running(threading.local):
    ended: Attempt | None = None
    """The attempt that this thread has run last."""


_running = _Running()


def hold_yielded(guard: ray.ObjectRef) -> None:
    """Hold `guard` for a while, if it may belong to a yielded item.

    Pickling does not tell to which result a value belongs. Before the task ends, any value of a worker with a
    generator among its functions may be yielded. After it ends, only results of the generator itself may be:
    other functions' results are pickled then, too.
    """
    global _thread
    observe_task_ends()
    attempt = (global_worker.current_task_id, global_worker.core_worker.get_current_task_attempt_number())
    if not _may_yield(has_ended=attempt == _running.ended):
        return
    item = _Item(guard, attempt, time.monotonic() + SECONDS)
    with _lock:
        _held.append(item)
        if _thread is None:
            _thread = threading.Thread(target=_let_go, name="hoplite-lingering", daemon=True)
            _thread.start()


def yields_concurrently() -> bool:
    """Whether a value that this thread pickles may be yielded while the worker runs other tasks."""
    if threading.current_thread() is threading.main_thread():
        # On the main thread Ray runs one task after the other. Tasks of threads and event loops run
        # elsewhere.
        return False
    generators = _generators()
    # Items of asynchronous generators are pickled on a thread that does not know the task.
    return bool(generators) and _name_now() in ["", *generators]


def _may_yield(*, has_ended: bool) -> bool:
    generators = _generators()
    # With `num_returns="dynamic"`, the caller hears of all items when the task ends.
    return bool(generators) and (not has_ended or _name_now() in generators)


def _generators() -> list[str]:
    """The names of this worker's functions that are generators."""
    functions = global_worker.function_actor_manager._function_execution_info.copy().values()
    return [info.function_name.rpartition(".")[2] for info in functions if _is_generator(info.function)]


def _name_now() -> str:
    """The name of the function that this thread runs or has just run."""
    name: str = global_worker.current_task_function_name
    return name.rpartition(".")[2]


def _is_generator(function: Any) -> bool:
    # For an actor's method, Ray keeps a wrapper that calls the method.
    method = getattr(function, "method", function)
    return inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)


def observe_task_ends() -> None:
    """Have Ray's ends of tasks reported to this module. Best called before the first task. May be called
    twice."""
    global _original
    with _lock:
        if _original is not None:
            return
        _original = Worker.record_task_log_end

    @functools.wraps(_original)
    def record_task_log_end(self: Worker, task_id: ray.TaskID, attempt_number: int) -> None:
        # Ray calls it when the task's caller has heard of all items, and not yet of the end.
        _end((task_id, attempt_number))
        _original(self, task_id, attempt_number)

    Worker.record_task_log_end = record_task_log_end


def _end(attempt: Attempt) -> None:
    _running.ended = attempt
    if not _held:
        return
    with _lock:
        before = list(_held)
        _held.clear()
        _held.extend(item for item in before if item.attempt != attempt)


def _let_go() -> None:
    while True:
        with _lock:
            wait = _held[0].until - time.monotonic() if _held else SECONDS
            late = _held.popleft() if _held and wait <= 0 else None
        if late is None:
            time.sleep(wait)
        # This frame must not hold the guard while it sleeps.
        del late
