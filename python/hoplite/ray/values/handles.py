"""Handles travel through Ray in place of large values. `put_as_handle` makes one, `load` unpickles it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.worker import global_worker

from hoplite.client import Client
from hoplite.errors import HopliteError, NodeUnreachable, ObjectLost, StoreFull, TimedOut
from hoplite.ids import ObjectId
from hoplite.on_lost import OnLost
from hoplite.ray.errors import unavailable
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.guards import id_of
from hoplite.ray.recovery.cpu_release import HOLD_CPUS_SECONDS, holds_cpus, wait_until_available
from hoplite.ray.recovery.loss_poller import awaiting, report_missing
from hoplite.ray.recovery.origins import Origin, is_listing_only, next_origin
from hoplite.ray.recovery.resource_lending import lender_here
from hoplite.ray.settings import SPACE_TIMEOUT
from hoplite.ray.values.batched_fetch import note_part
from hoplite.ray.values.forms import Form, received, sent, size_of
from hoplite.ray.values.generator_guards import hold_yielded, yields_concurrently
from hoplite.ray.values.handle_unpickler import are_handles_kept
from hoplite.ray.values.in_place import seal_in_place
from hoplite.ray.values.pickled_names import HANDLES_MODULE
from hoplite.timeouts import Deadline

__all__ = [
    "Handle",
    "guards_held",
    "kept_as_handles",
    "load",
    "loading_until",
    "prefetch_parts",
    "put_as_handle",
    "unavailable_here",
]

assert __name__ == HANDLES_MODULE, "pickles name this module"

logger = logging.getLogger(__name__)

SLOWEST_BYTES_PER_SECOND = 100e6
"""Slowest rate of copying into the store that a put waits for: that of a machine that swaps."""


class _Thread(threading.local):
    kept: list[Handle] | None = None
    deadline: Deadline | None = None
    held: list[Handle] | None = None


_thread = _Thread()


@dataclass(frozen=True, slots=True)
class Handle:
    """Stands for an object of Hoplite's. Unpickling it, anywhere in the cluster, gives the value."""

    guard: ray.ObjectRef
    form: Form
    origin: Origin | None
    """How to rebuild the object. None: it cannot be rebuilt."""

    @property
    def id(self) -> ObjectId:
        """The object's id."""
        return id_of(self.guard)

    def value(self) -> Any:
        """The value. Raises the errors of `Client.get`."""
        deadline = connection.FOR_EVER if _thread.deadline is None else _thread.deadline
        try:
            return connection.call(self._value, deadline)
        except NodeUnreachable as error:
            if deadline.is_over():
                raise TimedOut(str(error)) from error
            raise
        except HopliteError as error:
            # The id finds the reported reason why the object is unavailable.
            error.object_id = self.id
            raise

    def _value(self, conn: connection.Connection) -> Any:
        seconds = _wait_seconds(conn)
        with awaiting(self), _unlocked():
            if not holds_cpus():
                return received(conn.client, self.id, self.form, seconds, self.on_lost)
            return self._value_in_task(conn.client, Deadline(seconds))

    def _value_in_task(self, client: Client, deadline: Deadline) -> Any:
        # A transfer that has begun goes on when this get ends.
        try:
            return received(client, self.id, self.form, deadline.left_at_most(HOLD_CPUS_SECONDS), "raise")
        except ObjectLost:
            if self.origin is None:
                raise
            report_missing(self, certain=True, lender=lender_here())
        except TimedOut:
            if deadline.is_over():
                raise
        wait_until_available(self.id, deadline)
        return received(client, self.id, self.form, deadline.left(), self.on_lost)

    @property
    def on_lost(self) -> OnLost:
        """The `on_lost` for a get of this object."""
        if self.origin is None:
            return "raise"
        return lambda id: report_missing(self, certain=True, lender=lender_here())

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.guard, self.form, self.origin)


def load(guard: ray.ObjectRef, form: Form, origin: Origin | None) -> Any:
    """Unpickle a handle: pickles call this function."""
    handle = Handle(guard, Form(form), origin)
    if _thread.kept is not None:
        _thread.kept.append(handle)
        return handle
    return handle if are_handles_kept() else handle.value()


def prefetch_parts(ids: bytes) -> None:
    """Have the node fetch the objects of a value that is being unpickled. `ids`: their ids, concatenated."""
    if are_handles_kept() or _thread.kept is not None:
        return
    wanted = [ObjectId(ids[at : at + ObjectId.LENGTH]) for at in range(0, len(ids), ObjectId.LENGTH)]
    # The later get of an unavailable object raises the error.
    with contextlib.suppress(HopliteError):
        connection.call(lambda conn: conn.client.prefetch(wanted, timeout=_wait_seconds(conn)))


def _wait_seconds(conn: connection.Connection) -> float | None:
    """Seconds to wait for bytes: the client's default, or until the thread's own deadline."""
    return conn.client.default_timeout if _thread.deadline is None else _thread.deadline.left()


def put_as_handle(value: Any, form: Form) -> Handle | None:
    """Put `value` under a new guard. None, with a warning in the log, if Hoplite cannot take it now.

    Also None for values that must not become handles.
    """
    if is_listing_only(value, form):
        return None
    if _thread.held is None and global_worker.mode == ray.WORKER_MODE and yields_concurrently():
        return None
    # Values put for a call's arguments, or by `put`, are no part of the task's result.
    origin = next_origin(value, form) if _thread.held is None else None
    try:
        handle = connection.call(lambda conn: _put(conn, value, form, origin))
    except (NodeUnreachable, StoreFull, TimedOut) as error:
        logger.warning("%d bytes go through Ray's own object store: %s", size_of(value), error)
        return None
    note_part(handle.id)
    if _thread.held is not None:
        _thread.held.append(handle)
    elif global_worker.mode == ray.WORKER_MODE:
        hold_yielded(handle.guard)
    return handle


def _put(conn: connection.Connection, value: Any, form: Form, origin: Origin | None) -> Handle:
    guard = seal_in_place(value)
    if guard is not None:
        return Handle(guard, form, origin)
    handle = Handle(conn.guards.take(), form, origin)
    timeout = SPACE_TIMEOUT + size_of(value) / SLOWEST_BYTES_PER_SECOND
    conn.client.put(sent(value, form), handle.id, timeout=timeout)
    return handle


class guards_held:
    """Inside, this thread holds the guards of its puts until the end. The values are no part of a task's
    result.

    It surrounds puts, and calls, which may have large arguments. Ray counts the references inside of an
    argument when it sends the call. Until then, it assumes that the caller holds the pickled references. A
    class, because it surrounds every call: a generator takes twice as long.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _thread.held = _thread.held, []

    def __exit__(self, *_: object) -> None:
        _thread.held = self._before


@contextlib.contextmanager
def kept_as_handles() -> Iterator[list[Handle]]:
    """Inside, values that this thread gets from Ray have handles in place of large parts. Gives a list of
    them."""
    _thread.kept = []
    try:
        yield _thread.kept
    finally:
        _thread.kept = None


@contextlib.contextmanager
def loading_until(deadline: Deadline) -> Iterator[None]:
    """Inside, this thread waits for the bytes of values until `deadline` at the latest."""
    before, _thread.deadline = _thread.deadline, deadline
    try:
        yield
    finally:
        _thread.deadline = before


@contextlib.contextmanager
def _unlocked() -> Iterator[None]:
    """Inside, other threads can unpickle what they get from Ray while this thread waits.

    Ray unpickles under a lock, against imports on several threads at once. Rebuilding a value may need other
    threads of this process.
    """
    lock = global_worker.function_actor_manager.lock
    if not lock._is_owned():
        yield
        return
    # As `threading.Condition` does when it waits.
    depth = lock._release_save()
    try:
        yield
    finally:
        lock._acquire_restore(depth)


def unavailable_here(error: HopliteError) -> ray.exceptions.RayError:
    """The error for an unavailable value that is being unpickled on this thread."""
    context = global_worker.get_serialization_context()
    return unavailable(context.get_outer_object_ref(), error)
