"""Unpickling for processes that want only the handles in a value.

Handles stay handles. Some values cannot be built with handles inside: Arrow tables, classes that compute with
an array while they are unpickled, and classes that cannot be imported here. Such a value is unpickled with a
dummy in place of all classes, and its handles are found.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from ray._private.serialization import SerializationContext, split_buffer, unpack_pickle5_buffers

from hoplite.ray.recovery import origins
from hoplite.ray.recovery.origins import Origin
from hoplite.ray.settings import PACKAGE_PREFIX
from hoplite.ray.values import forms
from hoplite.ray.values.pickled_names import HANDLES_MARK, HANDLES_MODULE, PACKING_MODULE

__all__ = ["are_handles_kept", "handles_in", "keep_handles", "unpickled"]

REAL_MODULES = (PACKAGE_PREFIX, "ray._private.serialization")
"""Prefixes of modules whose functions and classes are not replaced by dummies: those of handles and
references."""

LOAD_HANDLE = (HANDLES_MODULE, "load")
UNPACK = (PACKING_MODULE, "unpacked")
LOAD_REFERENCE = ("ray._private.serialization", "_object_ref_deserializer")
"""Functions that a pickle calls to load a handle, a packed value, and a reference."""

FIELD_MODULES = (forms.__name__, origins.__name__)
"""Modules of the other fields of a handle."""

_keeps_handles = False


def keep_handles() -> None:
    """From now on, handles stay handles in this process. Node actors call it: they need no bytes."""
    global _keeps_handles
    _keeps_handles = True
    SerializationContext._deserialize_pickle5_data = _with_dummies(
        SerializationContext._deserialize_pickle5_data
    )


def are_handles_kept() -> bool:
    """Whether this process keeps handles."""
    return _keeps_handles


def unpickled(stream: bytes, buffers: Iterable[Any]) -> Any:
    """As `pickle.loads`. Where handles are kept, a value that cannot be built is replaced by its handles."""
    buffers = list(buffers)
    try:
        return pickle.loads(stream, buffers=buffers)
    except Exception:
        if not _keeps_handles:
            raise
    return _Unpickler(io.BytesIO(stream), buffers=buffers).load()


def handles_in(data: Any) -> list[tuple[str, Origin | None]]:
    """The guards (in hex) and origins of the handles in a value, given as Ray keeps it.

    The value is not built, and no reference is counted. If reading fails, the handles found before are
    returned.
    """
    if HANDLES_MARK not in bytes(data):
        return []
    found: list[tuple[str, Origin | None]] = []
    with contextlib.suppress(Exception):
        _, pickled = split_buffer(data)
        stream, buffers = unpack_pickle5_buffers(pickled)
        _Finder(stream, buffers, found).load()
    return found


def _with_dummies(deserialize: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: SerializationContext, data: Any, *tensors: Any) -> Any:
        try:
            return deserialize(self, data, *tensors)
        except Exception:
            stream, buffers = unpack_pickle5_buffers(data)
        return _Unpickler(io.BytesIO(stream), buffers=buffers).load()

    return method


class _DummyType(type):
    def __call__(cls, *_: object, **__: object) -> _DummyType:
        return cls

    def _ignore(cls, *_: object) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = _ignore


class _Dummy(metaclass=_DummyType):
    """Stands for all classes and functions, and for their results: it can be called, and filled, in every
    way.

    A call returns the dummy class itself. The callable may build a class, as for classes pickled with their
    code.
    """

    def __new__(cls, *_: object, **__: object) -> Any:
        return cls


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if module.startswith(REAL_MODULES) else _Dummy


class _Finder(pickle.Unpickler):
    def __init__(self, stream: bytes, buffers: Iterable[Any], found: list[tuple[str, Origin | None]]) -> None:
        super().__init__(io.BytesIO(stream), buffers=buffers)
        self._found = found

    def find_class(self, module: str, name: str) -> Any:
        what = (module, name)
        if what == LOAD_HANDLE:
            return self._note
        if what == UNPACK:
            return self._look_inside
        if what == LOAD_REFERENCE:
            return _binary
        return super().find_class(module, name) if module in FIELD_MODULES else _Dummy

    def _note(self, guard: bytes, _form: object, origin: Origin | None) -> Any:
        self._found.append((guard.hex(), origin))
        return _Dummy

    def _look_inside(self, stream: bytes, *buffers: Any) -> Any:
        _Finder(stream, buffers, self._found).load()
        return _Dummy


def _binary(binary: bytes, *_: object) -> bytes:
    return binary
