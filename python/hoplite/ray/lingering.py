"""What generators yield is held for a while by the worker that made it.

Ray tells the owner of a guard that the guard went to the generator's caller, and the caller what was
yielded, by two ways; if the caller is asked first whether it holds the guard, it says no, and the object is
deleted. Of other results the caller knows from the start.
"""

from __future__ import annotations

import collections
import inspect
import threading
import time
from typing import Any

import ray
from ray._private.worker import global_worker

__all__ = ["hold_what_is_yielded"]

SECONDS = 2.0
"""Held so long: far more than the caller takes to hear of it, even on a busy machine."""

_held: collections.deque[tuple[float, ray.ObjectRef]] = collections.deque()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def hold_what_is_yielded(guard: ray.ObjectRef) -> None:
    """Hold `guard` for a while, if it may be a generator's.

    That is, of any result of a worker that has a generator among its functions: what is pickled here does
    not say whose it is.
    """
    global _thread
    if not _may_yield():
        return
    _held.append((time.monotonic() + SECONDS, guard))
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_let_go, name="hoplite-lingering", daemon=True)
            _thread.start()


def _may_yield() -> bool:
    functions = global_worker.function_actor_manager._function_execution_info.copy().values()
    return any(_is_generator(info.function) for info in functions)


def _is_generator(function: Any) -> bool:
    # Of an actor's method it is what calls the method.
    method = getattr(function, "method", function)
    return inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)


def _let_go() -> None:
    while True:
        while not _held:
            time.sleep(SECONDS)
        time.sleep(max(0.0, _held[0][0] - time.monotonic()))
        _held.popleft()
