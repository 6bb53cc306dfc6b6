"""The errors of Hoplite, one class for each kind.

Every error is a :class:`HopliteError`. Where Python has a fitting class, the error is one of that class
too, so ``except TimeoutError`` works. Messages name the node, the object (by its name where it is known
here) and the bytes done of the total.
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
    """Whether the same call may succeed later without anyone changing it."""

    object_id: ObjectId | None = None
    """The object it is about, where that is one; of `ObjectLost` always."""


class TimedOut(HopliteError, TimeoutError):
    """The time given was up before the thing waited for happened."""

    is_retryable = True


class ObjectDeleted(HopliteError):
    """The object was deleted. Its id cannot be used again for a while: put versions in names."""


class ObjectLost(HopliteError):
    """The last complete copy of the object (`object_id`) died with its node.

    A put under the same id brings it back, and completes whoever still waits for it.
    """

    is_retryable = True


class StoreFull(HopliteError, MemoryError):
    """The node's store has no room, within the time given or (object larger than it) ever."""

    is_retryable = True


class ObjectExists(HopliteError):
    """The id is taken by an object of another size or kind."""


class Mismatch(HopliteError, ValueError):
    """Sizes, dtypes or shapes do not fit together."""


class BadArgument(HopliteError, ValueError):
    """The call makes no sense as written."""


class NodeUnreachable(HopliteError, ConnectionError):
    """A node that is needed cannot be reached, or the local daemon is gone.

    In the latter case all calls raise this until `Client.reconnect`.
    """

    is_retryable = True


class Aborted(HopliteError):
    """The writer gave the object up, or the call was cancelled."""


class VersionMismatch(HopliteError):
    """The two ends speak different versions of the protocol: upgrade the older one."""


class LimitReached(HopliteError):
    """A limit is reached, which the message names.

    Of the node: clients, descriptors, open calls, objects waited for. Of this process: descriptors.
    """

    is_retryable = True


class InternalError(HopliteError):
    """A bug in Hoplite. Please report it with the message."""
