"""Objects that cannot be had, as Ray's own errors."""

from __future__ import annotations

import ray.exceptions

from hoplite.errors import HopliteError, TimedOut

__all__ = ["ObjectFetchTimedOutError", "ObjectLostError", "unavailable"]


class _Unavailable(ray.exceptions.ObjectLostError):  # type: ignore[misc]
    """What Ray's error lacks: Hoplite's words for why."""

    def __init__(self, object_ref_hex: str, reason: str) -> None:
        super().__init__(object_ref_hex, None, "")
        self.reason = reason

    def __str__(self) -> str:
        return f"object {self.object_ref_hex} cannot be had from Hoplite: {self.reason}"

    def __reduce__(self) -> tuple[type[_Unavailable], tuple[str, str]]:
        return type(self), (self.object_ref_hex, self.reason)


class ObjectLostError(_Unavailable):
    """`ray.exceptions.ObjectLostError`: every copy has died or was deleted, or no node can be reached."""


class ObjectFetchTimedOutError(_Unavailable, ray.exceptions.ObjectFetchTimedOutError):  # type: ignore[misc]
    """`ray.exceptions.ObjectFetchTimedOutError`: it did not come in time."""


def unavailable(object_ref: ray.ObjectRef | None, error: HopliteError) -> _Unavailable:
    """The error for whoever needs the value of `object_ref` (None: it is not known, as in arguments)."""
    kind = ObjectFetchTimedOutError if isinstance(error, TimedOut) else ObjectLostError
    hex = "of unknown id" if object_ref is None else object_ref.hex()
    return kind(hex, f"{type(error).__name__}: {error}")
