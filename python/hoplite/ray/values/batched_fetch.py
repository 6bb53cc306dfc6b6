"""Requests all large parts of a value before the first is awaited.

Unpickling waits for one part after the other. So a pickle with several handles begins with a call of
`handles.prefetch_parts`, which has the node fetch all parts at once. The call's result is dropped.
"""

from __future__ import annotations

import pickle
import threading

from hoplite.ids import ObjectId
from hoplite.ray.values.pickled_names import HANDLES_MARK

__all__ = ["note_part", "parts_noted", "with_prefetch"]

# Written without the pickler, which numbers what it memoises: the numbers of all that follows would change.
_CALL = pickle.GLOBAL + HANDLES_MARK + b"\nprefetch_parts\n"
_DROPPED = pickle.TUPLE1 + pickle.REDUCE + pickle.POP


class _Thread(threading.local):
    parts: list[ObjectId] | None = None


_thread = _Thread()


class parts_noted:
    """Inside, this thread pickles one value. A class and no generator, for speed: it surrounds every
    value."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _thread.parts = _thread.parts, []

    def __exit__(self, *_: object) -> None:
        _thread.parts = self._before


def note_part(id: ObjectId) -> None:
    """Note that the value which this thread is pickling contains this object."""
    if _thread.parts is not None:
        _thread.parts.append(id)


def with_prefetch(stream: bytes) -> bytes:
    """The pickle `stream` that this thread has just made. With several objects in it, it begins with their
    prefetch."""
    parts = _thread.parts
    if parts is None or len(parts) < 2:
        return stream
    ids = b"".join(map(bytes, parts))
    return b"".join((_CALL, pickle.BINBYTES, len(ids).to_bytes(4, "little"), ids, _DROPPED, stream))
