"""Unpickling where handles stay handles: what cannot be made with them inside is taken apart instead.

A table of Arrow's cannot be made of handles, nor can what computes with an array while it is unpickled, or is
of a class that is not known here. Who wants nothing but the handles in such a value gets them all the same.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from ray._private.serialization import SerializationContext, unpack_pickle5_buffers

__all__ = ["are_handles_kept", "keep_handles", "unpickled"]

MADE = ("hoplite.ray.", "ray._private.serialization")
"""How the names of modules begin whose functions and classes are what they are: handles and references."""

_keeps_handles = False


def keep_handles() -> None:
    """From now on handles stay handles in this process, which wants no bytes: a keeper's."""
    global _keeps_handles
    _keeps_handles = True
    SerializationContext._deserialize_pickle5_data = _or_taken_apart(
        SerializationContext._deserialize_pickle5_data
    )


def are_handles_kept() -> bool:
    """Whether this process keeps handles."""
    return _keeps_handles


def unpickled(stream: bytes, buffers: Iterable[Any]) -> Any:
    """`pickle.loads`; where handles are kept, of a value that cannot be made only its handles are."""
    buffers = list(buffers)
    try:
        return pickle.loads(stream, buffers=buffers)
    except Exception:
        if not _keeps_handles:
            raise
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


def _or_taken_apart(deserialize: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: SerializationContext, data: Any, *tensors: Any) -> Any:
        try:
            return deserialize(self, data, *tensors)
        except Exception:
            stream, buffers = unpack_pickle5_buffers(data)
        return _Unpickler(io.BytesIO(stream), buffers=buffers).load()

    return method


class _Anything:
    """In place of all classes, functions, and what they make: may be called, and filled, in every way."""

    def __new__(cls, *_: object, **__: object) -> _Anything:
        return object.__new__(cls)

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *_: object, **__: object) -> _Anything:
        return self

    def _ignore(self, *_: object) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = _ignore


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if module.startswith(MADE) else _Anything
