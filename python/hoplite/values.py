"""Converts between Python values and objects. An object is a typed header and bytes.

A header is `(encoding, dtype, shape, descr)`. `dtype` is set for the twelve element types that can be
reduced. For all other NumPy dtypes, `descr` has the descriptor of the `.npy` format.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hoplite import _hoplite
from hoplite._hoplite import ARRAY, BYTES, OBJECT_BYTES_MAX
from hoplite.errors import BadArgument, Mismatch

REDUCIBLE = frozenset(_hoplite.DTYPES)
"""Names of the dtypes that can be reduced."""

_NUMPY_NAMES = {np.dtype(name): name for name in REDUCIBLE - {"bfloat16"}}
"""Names of the reducible dtypes that NumPy has. The table saves time: `dtype.name` is computed each time."""

_ML_DTYPES = "ml_dtypes:"
"""Prefix of the descriptor of a dtype that only the package ml_dtypes has (float8_e4m3fn, ...)."""


class Header(NamedTuple):
    """The header of an object. It is sent along with the bytes, and is the same for all copies."""

    encoding: int = BYTES
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    descr: str = ""


class Payload(NamedTuple):
    """A value ready to be put: its header, and its bytes in C-contiguous parts, one behind the other."""

    header: Header
    parts: Sequence[npt.NDArray[np.uint8] | memoryview]


def payload_of(value: Any) -> Payload:
    """The payload of `value`. Copies only if it is not C-contiguous. `BadArgument` if it has no buffer."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise BadArgument("what the array's mask hides would be shown; use put_object")
    if isinstance(value, np.ndarray | np.generic):
        return _of_array(np.asarray(value))
    if is_torch_tensor(value):
        return _of_tensor(value)
    try:
        view = memoryview(value)
    except TypeError:
        return _of_dlpack(value)
    except ValueError as error:  # it was released or closed
        raise BadArgument(f"this {type(value).__name__} has no bytes any more: {error}") from error
    if view.itemsize == 1 and view.format in ("B", "b", "c"):
        contiguous = view if view.c_contiguous else memoryview(view.tobytes())
        return Payload(Header(), [_flat(np.asarray(contiguous))])
    try:
        array = np.asarray(view)
    except ValueError as error:  # pointers, say
        raise BadArgument(f"NumPy has no dtype for this {type(value).__name__}: {error}") from error
    return _of_array(array)


def array_header(shape: int | Sequence[int], dtype: npt.DTypeLike) -> tuple[Header, int]:
    """The header of an array and its size in bytes. `BadArgument` if the shape or dtype is invalid."""
    try:
        dt = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise BadArgument(f"dtype: {error}") from error
    try:
        extents = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError as error:
        raise BadArgument(f"a shape is an integer or a sequence of integers, not {shape!r}") from error
    if any(n < 0 for n in extents):
        raise BadArgument(f"shape {extents} has a negative extent")
    size = math.prod(extents) * dt.itemsize
    if max(size, *extents, 0) > OBJECT_BYTES_MAX:
        raise BadArgument(f"an array of shape {extents} and dtype {dt} is larger than 2**47 bytes")
    return _header(dt, extents), size


def array_of(view: _hoplite.View) -> npt.NDArray[Any]:
    """The object of `view` as an array over the view's memory."""
    array = view.array()
    return as_array(Header(*view.header), view, view.size) if array is None else array


def as_array(header: Header, buffer: Any, size: int) -> npt.NDArray[Any]:
    """The bytes of `buffer` as the array that `header` describes. Plain bytes become uint8."""
    if header.encoding != ARRAY:
        return np.ndarray((size,), np.uint8, buffer=buffer)
    return np.ndarray(header.shape, dtype_of(header), buffer=buffer)


def dtype_of(header: Header) -> np.dtype[Any]:
    """The NumPy dtype that `header` describes."""
    if header.dtype == "bfloat16":
        return _ml_dtype("bfloat16")
    if header.dtype is not None:
        return np.dtype(header.dtype)
    if header.descr.startswith(_ML_DTYPES):
        return _ml_dtype(header.descr.removeprefix(_ML_DTYPES))
    try:
        return np.lib.format.descr_to_dtype(ast.literal_eval(header.descr))
    except (SyntaxError, TypeError, ValueError) as error:
        raise Mismatch(f"the object is no NumPy array: its dtype reads {header.descr!r}") from error


def _of_array(array: npt.NDArray[Any]) -> Payload:
    header = _header(array.dtype, array.shape)
    return Payload(header, [_flat(np.ascontiguousarray(array))])


def _flat(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    # View the array as bytes, as NumPy exports no buffer of datetimes or of foreign dtypes.
    if array.size == 0 or array.dtype.itemsize == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Header:
    if dtype.hasobject:
        raise BadArgument(f"an array of {dtype} holds references to Python objects; use put_object")
    name = _NUMPY_NAMES.get(dtype) or dtype.name
    if name in REDUCIBLE and dtype.isnative and sys.byteorder == "little":
        return Header(ARRAY, name, shape)
    if type(dtype).__module__.startswith("ml_dtypes") or dtype.type.__module__.startswith("ml_dtypes"):
        return Header(ARRAY, None, shape, f"{_ML_DTYPES}{dtype.name}")
    return Header(ARRAY, None, shape, _descr(dtype))


def _descr(dtype: np.dtype[Any]) -> str:
    """The descriptor that NumPy writes into an `.npy` file. `BadArgument` if it does not describe all."""
    try:
        descr = np.lib.format.dtype_to_descr(dtype)
        says_all = np.lib.format.descr_to_dtype(descr) == dtype
    except ValueError as error:
        raise BadArgument(f"an array of {dtype} cannot be described: {error}; use put_object") from error
    if not says_all:
        # A record with fields of another package's dtypes, for example, would come back as raw bytes.
        raise BadArgument(f"an array of {dtype} cannot be described; use put_object")
    return repr(descr)


def _ml_dtype(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError as error:
        raise BadArgument(
            f"the object is an array of {name}, which NumPy knows only with the package ml_dtypes"
            " (pip install ml_dtypes); get_torch needs no other package than torch"
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def is_torch_tensor(value: Any) -> bool:
    """Whether `value` is a PyTorch tensor."""
    # torch need not be imported for this: a tensor exists only if torch was imported before.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_tensor(tensor: Any) -> Payload:
    import torch

    if tensor.device.type != "cpu":
        raise BadArgument(f"the tensor is on {tensor.device}; Hoplite moves host memory: use tensor.cpu()")
    dense = tensor.detach().contiguous().resolve_conj().resolve_neg()
    if dense.dtype == torch.bfloat16:
        # NumPy has no bfloat16, but the header has: pass the bits.
        bits = dense.view(torch.int16).numpy()
        return Payload(Header(ARRAY, "bfloat16", tuple(dense.shape)), [_flat(bits)])
    return _of_array(dense.numpy())


def _of_dlpack(value: Any) -> Payload:
    """The payload of an Arrow array, or of another library's array, without a copy."""
    if not hasattr(value, "__dlpack__"):
        raise BadArgument(
            f"{type(value).__name__} has no buffer of bytes; use put_object for arbitrary Python objects"
        )
    try:
        return _of_array(np.from_dlpack(value))
    except Exception as error:  # libraries raise their own classes here, Arrow among them
        raise BadArgument(
            f"this {type(value).__name__} has no single buffer on this host: {error}"
        ) from error
