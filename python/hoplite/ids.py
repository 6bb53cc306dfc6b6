"""Names of objects."""

from __future__ import annotations

import os
from typing import Final

from hoplite import _hoplite

__all__ = ["ObjectId", "ObjectIdLike"]


class ObjectId:
    """Names an immutable object: 16 bytes, made from a unique string or at random.

    Hashable, ordered by its bytes, and picklable. An id made from a name remembers the name, for
    messages only: equality looks at the 16 bytes.
    """

    __slots__ = ("_name", "_raw")

    LENGTH: Final = 16
    """Bytes of an id."""

    def __init__(self, raw: bytes, name: str | None = None) -> None:
        """Wrap the 16 bytes `raw`. Most callers want `from_name` or `random`."""
        if not isinstance(raw, bytes) or len(raw) != self.LENGTH:
            raise ValueError(f"an object id is {self.LENGTH} bytes, not {raw!r}")
        self._raw = raw
        self._name = name

    @classmethod
    def from_name(cls, name: str) -> ObjectId:
        """The id of a name: the first 16 bytes of the BLAKE3 hash of its UTF-8 bytes."""
        return cls(_hoplite.id_of_name(name), name)

    @classmethod
    def random(cls) -> ObjectId:
        """An id nobody else has."""
        return cls(os.urandom(cls.LENGTH))

    @classmethod
    def from_hex(cls, text: str) -> ObjectId:
        """The id whose `hex()` is `text`: 32 hexadecimal digits. ValueError otherwise."""
        return cls(bytes.fromhex(text))

    @classmethod
    def of(cls, id: ObjectIdLike) -> ObjectId:
        """`id` itself, or the id of the name `id`: how every call reads its arguments."""
        if isinstance(id, ObjectId):
            return id
        if isinstance(id, str):
            return cls.from_name(id)
        raise TypeError(f"an object is named by an ObjectId or a str, not {type(id).__name__}")

    @property
    def name(self) -> str | None:
        """The string it was made from, if that is known here."""
        return self._name

    def hex(self) -> str:
        """32 hexadecimal digits."""
        return self._raw.hex()

    def __bytes__(self) -> bytes:
        return self._raw

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectId):
            return NotImplemented
        return self._raw == other._raw

    def __lt__(self, other: ObjectId) -> bool:
        if not isinstance(other, ObjectId):
            return NotImplemented
        return self._raw < other._raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __reduce__(self) -> tuple[type[ObjectId], tuple[bytes, str | None]]:
        return (ObjectId, (self._raw, self._name))

    def __repr__(self) -> str:
        if self._name is not None:
            return f"ObjectId.from_name({self._name!r})"
        return f"ObjectId.from_hex({self.hex()!r})"

    def __str__(self) -> str:
        return self._name if self._name is not None else self.hex()


ObjectIdLike = ObjectId | str
"""What names an object in a call: an `ObjectId`, or a name (`ObjectId.from_name` of it)."""
