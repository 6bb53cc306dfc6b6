"""The layout of Ray's reference ids.

A reference's id ends with its index among the results of its task, or among what the task has put. Before the
index is the task's id. In a task's id stands the actor whose method the task runs, if any.
"""

from __future__ import annotations

__all__ = ["index_of", "is_of_actor", "is_put", "task_id_of", "task_of"]

INDEX_BYTES = 4
"""At the end of a reference's id, little-endian."""

ACTOR_AT = slice(8, 20)
"""The place in a reference's id of the id of the actor whose method returned it."""

NO_ACTOR = b"\xff" * 12
"""The bytes in the place of an actor's id, if a remote function returned the value."""

RETURNS_MAX = 100_000_000
"""Most results that Ray lets a task have. Higher indices are of values that a task has put."""


def task_of(reference: str) -> str:
    """The id of the task that returned or put the reference; both ids are in hex."""
    return reference[: -2 * INDEX_BYTES]


def task_id_of(reference: bytes) -> bytes:
    """The same, of ids in bytes."""
    return reference[:-INDEX_BYTES]


def index_of(reference: bytes) -> int:
    """The index among the results of its task, from 1 on, or among what the task has put: see `is_put`."""
    return int.from_bytes(reference[-INDEX_BYTES:], "little")


def is_put(reference: bytes) -> bool:
    """Whether the value was put by a task or driver, and is no task's result."""
    return index_of(reference) > RETURNS_MAX


def is_of_actor(reference: bytes) -> bool:
    """Whether a method of an actor returned it."""
    return reference[ACTOR_AT] != NO_ACTOR
