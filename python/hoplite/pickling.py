"""Arbitrary Python objects as Hoplite objects, by pickle protocol 5 with out-of-band buffers.

The layout (little-endian) lets a reader use the buffers in place::

    0   magic     8 bytes  b"hopickl5"
    8   count     u64      parts: the pickle stream, then each out-of-band buffer
    16  table     count x (offset u64, length u64), offsets from the start of the object
        parts     each at a multiple of 64 bytes (`ALIGNMENT`, as objects), zeros between them

NumPy arrays, Arrow tables and all other values whose reducer makes a `pickle.PickleBuffer` are unpickled as
read-only views into the store. Only the small stream is copied.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

from hoplite._hoplite import ALIGNMENT, PICKLE
from hoplite.errors import Mismatch
from hoplite.values import Header, Payload

__all__ = ["pickled", "unpickle"]

MAGIC = b"hopickl5"
_HEAD = struct.Struct("<8sQ")
_ENTRY = struct.Struct("<QQ")


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def pickled(value: Any) -> Payload:
    """The payload of a value of any class."""
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        # False means out of band. A buffer that is not contiguous has no raw form, so it stays in the
        # stream.
        try:
            buffers.append(buffer.raw())
        except BufferError:
            return True
        return False

    stream = pickle.dumps(value, protocol=5, buffer_callback=take)
    contents = [memoryview(stream), *buffers]
    table = bytearray(_HEAD.pack(MAGIC, len(contents)))
    end = _HEAD.size + _ENTRY.size * len(contents)
    parts: list[memoryview] = []
    for content in contents:
        offset = _aligned(end)
        table += _ENTRY.pack(offset, content.nbytes)
        if offset > end:
            parts.append(memoryview(bytes(offset - end)))
        parts.append(content)
        end = offset + content.nbytes
    return Payload(Header(PICKLE), [memoryview(table), *parts])


def unpickle(data: memoryview) -> Any:
    """The value whose pickled form is `data`. Its buffers are views into `data`.

    Unpickling runs code that the writer chose, so get pickled objects only from a cluster that you trust.
    """
    try:
        magic, count = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise Mismatch(f"not a pickled object: it starts with {bytes(magic)!r}, not {MAGIC!r}")
        parts = []
        for i in range(count):
            offset, length = _ENTRY.unpack_from(data, _HEAD.size + _ENTRY.size * i)
            if offset + length > data.nbytes:
                raise Mismatch(f"part {i} ends at {offset + length}, the object at {data.nbytes} bytes")
            parts.append(data[offset : offset + length])
        stream, *buffers = parts
    except (struct.error, ValueError) as error:
        if isinstance(error, Mismatch):
            raise
        raise Mismatch(f"not a pickled object: {error}") from error
    return pickle.loads(stream, buffers=buffers)
