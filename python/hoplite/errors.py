"""The errors of Hoplite, one class for each kind.

Every error is a :class:`HopliteError`. Where Python has a fitting class, the error is also a subclass of
that class, so ``except TimeoutError`` works. Messages name the node, the object and the bytes done of the
total. They show an object's name where this process knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from hoplite.ids import ObjectId

__all__ = [
    "Aborted",
    "BadArgument",
    "HopliteError",
    "InternalError",
    "LimitReached",
    "Mismatch",
    "NodeUnreachable",
    "ObjectDeleted",
    "ObjectExists",
    "ObjectLost",
    "StoreFull",
    "TimedOut",
    "VersionMismatch",
]


class HopliteError(Exception):
    """Base of all errors of Hoplite."""

    is_retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, unchanged."""

    object_id: ObjectId | None = None
    """The object that the error is about, if it is about a single one. `ObjectLost` always has it."""


class TimedOut(HopliteError, TimeoutError):
    """The call did not finish within its time-out."""

    is_retryable = True


class ObjectDeleted(HopliteError):
    """The object was deleted. Its id cannot be used again for a while, so put versions in names."""


class ObjectLost(HopliteError):
    """The last complete copy of the object (`object_id`) died with its node.

    A put under the same id brings it back, and completes the calls that still wait for it.
    """

    is_retryable = True


class StoreFull(HopliteError, MemoryError):
    """The node's store had no room within the time-out, or the object is larger than the store."""

    is_retryable = True


class ObjectExists(HopliteError):
    """The id belongs to an object of another size or kind."""


class Mismatch(HopliteError, ValueError):
    """Sizes, dtypes or shapes do not fit together."""


class BadArgument(HopliteError, ValueError):
    """An argument of the call is invalid."""


class NodeUnreachable(HopliteError, ConnectionError):
    """A required node cannot be reached, or the local daemon is gone.

    If the local daemon is gone, all calls raise this until `Client.reconnect`.
    """

    is_retryable = True


class Aborted(HopliteError):
    """The writer abandoned the object, or the call was cancelled."""


class VersionMismatch(HopliteError):
    """The two sides speak different versions of the protocol. Upgrade the older side."""


class LimitReached(HopliteError):
    """A limit has been reached; the message names it.

    Limits of the node: clients, descriptors, open calls, objects waited for. Limit of this process:
    descriptors.
    """

    is_retryable = True


class InternalError(HopliteError):
    """A bug in Hoplite. Please report it together with the message."""
