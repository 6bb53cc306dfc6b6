"""Ids and names of objects."""

from __future__ import annotations

from hoplite._hoplite import TOMBSTONE_SECONDS, ObjectId

__all__ = ["TOMBSTONE_SECONDS", "ObjectId", "ObjectIdLike"]

ObjectIdLike = ObjectId | str
"""An object in a call: an `ObjectId`, or a name, which stands for `ObjectId.from_name(name)`."""
