"""Explicit mode: `put`, `get`, `wait` and `remote`, on ordinary references of Ray's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.actor import ActorClass
from ray.remote_function import RemoteFunction

from hoplite.ray.nodes import connection
from hoplite.ray.recovery.rebuilder import Recorded
from hoplite.ray.values.handles import guards_held, loading_until
from hoplite.ray.values.packing import Packed, packing, packing_actor
from hoplite.timeouts import Deadline

__all__ = ["get", "put", "remote", "wait"]

wait = ray.wait
"""`ray.wait`. Hoplite's objects are ready when some node can send them."""


def put(value: Any) -> ray.ObjectRef:
    """`ray.put`, where arrays, tensors and Arrow buffers above the threshold in `value` go through Hoplite.

    Raises `NodeUnreachable` if nobody has called `init`.
    """
    connection.require()
    with guards_held():
        return ray.put(Packed(value))


def get(references: ray.ObjectRef | Sequence[ray.ObjectRef], *, timeout: float | None = None) -> Any:
    """`ray.get`, where `timeout` (seconds) bounds Hoplite's part too.

    Arrays are read-only views of shared memory. Raises `ray.exceptions.GetTimeoutError`, errors derived from
    `ray.exceptions.ObjectLostError` for unavailable values, and the errors of tasks.
    """
    if timeout is None:
        return ray.get(references)
    deadline = Deadline(timeout)
    with loading_until(deadline):
        try:
            return ray.get(references, timeout=timeout)
        except ray.exceptions.ObjectFetchTimedOutError as error:
            # An error of the task itself is its result, even after the deadline.
            if not deadline.is_over() or isinstance(error, ray.exceptions.RayTaskError):
                raise
            raise ray.exceptions.GetTimeoutError(str(error)) from error


def remote(*args: Any, **options: Any) -> Any:
    """`ray.remote` for functions and classes whose results go through Hoplite.

    Used as a decorator, with or without Ray's options.
    """
    if len(args) == 1 and not options and callable(args[0]):
        return _packing(args[0], ray.remote)
    if args:
        raise TypeError("@hoplite.ray.remote takes a function or class, or options by name")
    decorate: Callable[[Any], Any] = ray.remote(**options)
    return lambda target: _packing(target, decorate)


def _packing(target: Any, decorate: Callable[[Any], Any]) -> Any:
    if isinstance(target, (RemoteFunction, ActorClass)):
        raise TypeError("@hoplite.ray.remote is there in place of @ray.remote, not around it")
    if inspect.isclass(target):
        return decorate(packing_actor(target))
    function = decorate(packing(target))
    function.__class__ = Recorded
    return function
