"""Saves a task's arguments so that it can run again: small ones as copies, references without their
values."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray._private.worker import global_worker
from ray.actor import ActorHandle
from ray.cloudpickle import CloudPickler

from hoplite.errors import HopliteError

__all__ = ["Actor", "ArgumentSaver", "CannotRunAgain", "Reference", "Remake", "reference_counts", "restored"]

BYTES_MAX = 100 << 10
"""Most bytes of one saved argument. It is also the most that Ray copies into its message. Callers should put
larger arguments."""

TOO_LARGE = f"an argument has more than {BYTES_MAX} bytes"

FEW = 8
"""Most items of a list, tuple or dict that is saved item by item, which is cheaper than pickling it."""

SCALARS = frozenset([bool, complex, float, int, type(None)])

Remake = Callable[["Reference"], ray.ObjectRef]
"""Gives a new reference to the same value, for one that is out of scope. Raises `CannotRunAgain`."""


class CannotRunAgain(HopliteError):
    """A task may not run again, or its arguments are too large, or have gone."""

    def __init__(self, message: str, kind: str = "OBJECT_LOST") -> None:
        """`kind`: the name of the member of Ray's `ErrorType` that fits best."""
        super().__init__(message)
        self.kind = kind


class Reference(NamedTuple):
    """A saved reference. It does not keep the value alive."""

    binary: bytes
    task: Any
    """The record of the task that returned it. None: no task is known."""


class Actor(NamedTuple):
    """A saved handle of an actor."""

    id: ray.ActorID

    def handle(self) -> ActorHandle:
        """A handle of the actor. Raises `CannotRunAgain`."""
        # Checked first: Ray ends a process that asks for the handle of an actor it does not know.
        if global_worker.core_worker.get_local_actor_state(self.id) is None:
            raise CannotRunAgain(f"this process knows the actor {self.id.hex()} no more")
        return global_worker.core_worker.get_actor_handle(self.id)


@dataclass(frozen=True, slots=True)
class _Pickled:
    stream: bytes
    references: list[Reference | Actor]


class ArgumentSaver:
    """Saves the arguments of one call."""

    __slots__ = ("bytes", "hold", "reference")

    def __init__(
        self,
        reference: Callable[[ray.ObjectRef], Reference],
        hold: Callable[[ActorHandle], None],
    ) -> None:
        """`hold`: keeps an actor alive, which the saved handle does not."""
        self.reference = reference
        self.hold = hold
        self.bytes = 0
        """Bytes saved so far, besides references and scalars."""

    def saved(self, argument: Any) -> Any:
        """The argument in a form that changes no lifetimes and that later changes by the caller do not reach.

        Raises `CannotRunAgain`, and the errors of pickling.
        """
        kind = type(argument)
        if kind in SCALARS:
            return argument
        if isinstance(argument, ray.ObjectRef):
            return self.reference(argument)
        if isinstance(argument, ActorHandle):
            return self.actor(argument)
        if kind is str or kind is bytes:
            self._take(len(argument))
            return argument
        if (kind is list or kind is tuple) and len(argument) <= FEW:
            return kind([self.saved(item) for item in argument])
        if kind is dict and len(argument) <= FEW:
            return {self.saved(key): self.saved(item) for key, item in argument.items()}
        pickler = _Pickler(self)
        pickler.dump(argument)
        stream = pickler.stream.getvalue()
        self._take(len(stream))
        return _Pickled(stream, pickler.references)

    def actor(self, handle: ActorHandle) -> Actor:
        """The saved form of an actor's handle."""
        self.hold(handle)
        return Actor(handle._actor_id)

    def _take(self, count: int) -> None:
        if count > BYTES_MAX:
            raise CannotRunAgain(TOO_LARGE)
        self.bytes += count


def restored(argument: Any, remake: Remake) -> Any:
    """The argument from its saved form."""
    if isinstance(argument, (Reference, Actor)):
        return _restored(argument, remake)
    if isinstance(argument, _Pickled):
        unpickler = pickle.Unpickler(io.BytesIO(argument.stream))
        unpickler.persistent_load = lambda index: _restored(argument.references[index], remake)  # type: ignore[method-assign]
        return unpickler.load()
    if type(argument) in (list, tuple):
        return type(argument)([restored(item, remake) for item in argument])
    if type(argument) is dict:
        return {restored(key, remake): restored(item, remake) for key, item in argument.items()}
    return argument


def _restored(reference: Reference | Actor, remake: Remake) -> ray.ObjectRef | ActorHandle:
    if isinstance(reference, Actor):
        return reference.handle()
    counts = reference_counts().get(reference.binary.hex().encode(), {})
    return ray.ObjectRef(reference.binary) if any(counts.values()) else remake(reference)


def reference_counts() -> dict[bytes, dict[str, int]]:
    """Ray's counts of all references that this process has or owns, by id (in hex, as bytes)."""
    found: dict[bytes, dict[str, int]] = global_worker.core_worker.get_all_reference_counts()
    return found


class _Stream(io.BytesIO):
    def write(self, data: Any) -> int:
        # Large parts come as `pickle.PickleBuffer`s.
        if self.tell() + memoryview(data).nbytes > BYTES_MAX:
            # Raised before all bytes are copied.
            raise CannotRunAgain(TOO_LARGE)
        return super().write(data)


class _Pickler(CloudPickler):  # type: ignore[misc]
    def __init__(self, saver: ArgumentSaver) -> None:
        self.stream = _Stream()
        self.references: list[Reference | Actor] = []
        self._saver = saver
        super().__init__(self.stream)

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, ray.ObjectRef):
            self.references.append(self._saver.reference(value))
        elif isinstance(value, ActorHandle):
            self.references.append(self._saver.actor(value))
        else:
            return None
        return len(self.references) - 1
