"""Ids and names of objects."""

from __future__ import annotations

from hoplite._hoplite import ObjectId

__all__ = ["ObjectId", "ObjectIdLike"]

ObjectIdLike = ObjectId | str
"""An object in a call: an `ObjectId`, or a name, which stands for `ObjectId.from_name(name)`."""
