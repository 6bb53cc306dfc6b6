"""A task's arguments, kept so that it can run again: small ones copied, references without their values."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.worker import global_worker
from ray.actor import ActorHandle
from ray.cloudpickle import CloudPickler

from hoplite.errors import HopliteError

__all__ = ["CannotRunAgain", "Reference", "kept", "revived"]

BYTES_MAX = 100 << 10
"""Of one pickled argument, as of what Ray copies into its message. Larger ones are the caller's to put."""

FEW = 8
"""Items of a list or tuple that is cheaper to keep item by item than to pickle."""

IMMUTABLE = frozenset([bool, bytes, complex, float, int, str, type(None)])

Remake = Callable[["Reference"], ray.ObjectRef]
"""Gives a reference whose value is as that of one that is out of scope; else raises `CannotRunAgain`."""


class CannotRunAgain(HopliteError):
    """A task's arguments are large, hold actors, or have gone."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What is left of a reference in an argument: it does not keep the value alive."""

    binary: bytes
    task: Any
    """What is known of the task whose result it is; None: nothing."""


@dataclass(frozen=True, slots=True)
class _Pickled:
    stream: bytes
    references: list[Reference]


def kept(argument: Any, reference: Callable[[ray.ObjectRef], Reference]) -> Any:
    """`argument` in a form that changes no lifetimes, and which the caller's changes do not reach."""
    if type(argument) in IMMUTABLE:
        return argument
    if isinstance(argument, ray.ObjectRef):
        return reference(argument)
    if type(argument) in (list, tuple) and len(argument) <= FEW:
        return type(argument)([kept(item, reference) for item in argument])
    pickler = _Pickler(reference)
    pickler.dump(argument)
    return _Pickled(pickler.stream.getvalue(), pickler.references)


def revived(argument: Any, remake: Remake) -> Any:
    """The argument that `kept` kept."""
    if isinstance(argument, Reference):
        return _revived(argument, remake)
    if isinstance(argument, _Pickled):
        unpickler = pickle.Unpickler(io.BytesIO(argument.stream))
        unpickler.persistent_load = lambda index: _revived(argument.references[index], remake)  # type: ignore[method-assign]
        return unpickler.load()
    if type(argument) in (list, tuple):
        return type(argument)([revived(item, remake) for item in argument])
    return argument


def _revived(reference: Reference, remake: Remake) -> ray.ObjectRef:
    counts = global_worker.core_worker.get_all_reference_counts().get(reference.binary.hex(), {})
    return ray.ObjectRef(reference.binary) if any(counts.values()) else remake(reference)


class _Stream(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > BYTES_MAX:
            raise CannotRunAgain(f"an argument has more than {BYTES_MAX} bytes")
        return super().write(data)


class _Pickler(CloudPickler):  # type: ignore[misc]
    def __init__(self, reference: Callable[[ray.ObjectRef], Reference]) -> None:
        self.stream = _Stream()
        self.references: list[Reference] = []
        self._reference = reference
        super().__init__(self.stream)

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, ray.ObjectRef):
            self.references.append(self._reference(value))
            return len(self.references) - 1
        if isinstance(value, ActorHandle):
            # Kept, it would keep its actor.
            raise CannotRunAgain("an argument holds an actor")
        return None
