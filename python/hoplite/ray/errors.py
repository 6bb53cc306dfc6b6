"""Ray's error classes for objects that are unavailable."""

from __future__ import annotations

import base64
import pickle

import ray.exceptions
from ray import cloudpickle
from ray.core.generated.common_pb2 import ErrorType

from hoplite.errors import HopliteError, ObjectDeleted, ObjectLost, TimedOut
from hoplite.ray.recovery.loss_reports import RAISED, reason_of

__all__ = ["ObjectFetchTimedOutError", "ObjectLostError", "pickled", "unavailable"]

ERROR_BYTES_MAX = 10_000
"""Most bytes of a pickled error of a task. Longer ones are told in words. One error is stored for each
value."""

UNRECONSTRUCTABLE = "OBJECT_UNRECONSTRUCTABLE_"
"""Prefix of those of Ray's `ErrorType`s that say why an object cannot be rebuilt."""


class _Unavailable(ray.exceptions.ObjectLostError):  # type: ignore[misc]
    """Adds the reason, in Hoplite's words, to Ray's error."""

    def __init__(self, object_ref_hex: str, why: str) -> None:
        ray.exceptions.ObjectLostError.__init__(self, object_ref_hex, None, "")
        self.why = why

    def __str__(self) -> str:
        return f"object {self.object_ref_hex} cannot be had from Hoplite: {self.why}"

    def __reduce__(self) -> tuple[type[_Unavailable], tuple[str, ...]]:
        return type(self), (self.object_ref_hex, self.why)


class ObjectLostError(_Unavailable):
    """`ray.exceptions.ObjectLostError`: every copy has died or was deleted, or no node can be reached."""


class ObjectFetchTimedOutError(_Unavailable, ray.exceptions.ObjectFetchTimedOutError):  # type: ignore[misc]
    """`ray.exceptions.ObjectFetchTimedOutError`: the value did not come in time."""


class OwnerDiedError(_Unavailable, ray.exceptions.OwnerDiedError):  # type: ignore[misc]
    """`ray.exceptions.OwnerDiedError`: the process that called its task has ended."""


class ReferenceCountingAssertionError(_Unavailable, ray.exceptions.ReferenceCountingAssertionError):  # type: ignore[misc]
    """`ray.exceptions.ReferenceCountingAssertionError`: deleted, because no reference to it was known."""


class ObjectReconstructionFailedError(_Unavailable, ray.exceptions.ObjectReconstructionFailedError):  # type: ignore[misc]
    """`ray.exceptions.ObjectReconstructionFailedError`: its task may not run again."""

    def __init__(self, object_ref_hex: str, why: str, kind: str) -> None:
        """`kind`: the name of one of Ray's `ErrorType`s."""
        super().__init__(object_ref_hex, why)
        self.reason = ErrorType.Value(kind)
        self.reason_message = why

    def __str__(self) -> str:
        return f"{super().__str__()} [{ErrorType.Name(self.reason)}]"

    def __reduce__(self) -> tuple[type[_Unavailable], tuple[str, ...]]:
        return type(self), (self.object_ref_hex, self.why, ErrorType.Name(self.reason))


def pickled(error: ray.exceptions.RayError) -> bytes | None:
    """The error of a task, for consumers of its result. None if it is too large, or cannot be pickled."""
    try:
        if isinstance(error, ray.exceptions.RayTaskError):
            # The raised error is also of its cause's class, which cannot be pickled everywhere.
            error = ray.exceptions.RayTaskError("", str(error), error.cause)
        found: bytes = cloudpickle.dumps(error)
    except Exception:
        return None
    return found if len(found) <= ERROR_BYTES_MAX else None


def unavailable(object_ref: ray.ObjectRef | None, error: HopliteError) -> ray.exceptions.RayError:
    """The error for a consumer of `object_ref`. None: its id is not known, as in arguments."""
    hex = "of unknown id" if object_ref is None else object_ref.hex()
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, TimedOut):
        return ObjectFetchTimedOutError(hex, why)
    said = None
    if isinstance(error, (ObjectDeleted, ObjectLost)) and error.object_id is not None:
        said = reason_of(error.object_id)
    if said is None:
        kind_of = ReferenceCountingAssertionError if isinstance(error, ObjectDeleted) else ObjectLostError
        return kind_of(hex, why)
    kind, reason = said
    if kind == RAISED:
        return _unpickled(reason, hex)
    if kind == "OWNER_DIED":
        return OwnerDiedError(hex, reason)
    if kind.startswith(UNRECONSTRUCTABLE):
        return ObjectReconstructionFailedError(hex, reason, kind)
    return ObjectLostError(hex, reason)


def _unpickled(reason: str, hex: str) -> ray.exceptions.RayError:
    try:
        return pickle.loads(base64.b64decode(reason))
    except Exception as error:
        return ObjectLostError(hex, f"its task has raised an error that cannot be unpickled here: {error!r}")
