"""The memory that a copying get writes to: new private memory of the right size, or memory of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hoplite._hoplite import ARRAY
from hoplite.errors import BadArgument, Mismatch
from hoplite.values import Header, dtype_of, is_torch_tensor

Bytes = npt.NDArray[np.uint8]

Destination = Callable[[Header, int], tuple[Any, Bytes]]
"""Takes an object's header and size. Returns the caller's result, and the same memory as bytes."""


def new_array(header: Header, size: int) -> tuple[Any, Bytes]:
    """A new NumPy array."""
    if header.encoding != ARRAY:
        plain = np.empty(size, np.uint8)
        return plain, plain
    array = np.empty(header.shape, dtype_of(header))
    return array, _bytes_of(array)


def new_tensor(header: Header, size: int) -> tuple[Any, Bytes]:
    """A new PyTorch tensor."""
    import torch

    if header.encoding != ARRAY:
        plain = torch.empty(size, dtype=torch.uint8)
        return plain, plain.numpy()
    name = header.dtype
    if name is None:
        described = dtype_of(header)
        # NumPy gives both byte orders the same name.
        name = described.name if described.isnative else described.str
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Mismatch(f"PyTorch has no dtype for the object's {name}")
    tensor = torch.empty(header.shape, dtype=dtype)
    # Flatten it first, as a 0-d tensor cannot be viewed as bytes.
    return tensor, tensor.reshape(-1).view(torch.uint8).numpy()


def caller_memory(out: Any) -> Destination:
    """A destination that fills `out`, which must be writable and C-contiguous.

    Raises `BadArgument` if it is not. The destination raises `Mismatch` if the object does not fit `out`.
    """
    array = _array_of(out)
    if array.dtype.hasobject:
        raise BadArgument(f"out= is an array of {array.dtype}, which holds references to Python objects")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise BadArgument("out= must be writable and C-contiguous")
    room = _bytes_of(array)
    typed = array.dtype != np.uint8

    def make(header: Header, size: int) -> tuple[Any, Bytes]:
        if room.nbytes != size:
            raise Mismatch(f"the object has {size} bytes, out= has room for {room.nbytes}")
        # Plain bytes fit any dtype. Two different dtypes would be a reinterpretation that was not asked for.
        if typed and header.encoding == ARRAY and not _same(header, array.dtype):
            raise Mismatch(f"the object is of {header.dtype or header.descr}, out= of {array.dtype}")
        return out, room

    return make


def _same(header: Header, dtype: np.dtype[Any]) -> bool:
    if header.dtype == "bfloat16":
        # bfloat16 is given as its bits without ml_dtypes, and from a tensor.
        return dtype.name in ("bfloat16", "int16", "uint16")
    return dtype_of(header) == dtype


def _array_of(out: Any) -> npt.NDArray[Any]:
    if isinstance(out, np.ndarray):
        return out
    if is_torch_tensor(out):
        import torch

        # view shares memory or raises. reshape would silently copy a strided tensor.
        tensor = out.detach()
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        array: npt.NDArray[Any] = bits.numpy()
        return array
    try:
        return np.asarray(memoryview(out))
    except (TypeError, ValueError) as error:
        raise BadArgument(f"out= needs a writable buffer; {type(out).__name__} has none") from error


def _bytes_of(array: npt.NDArray[Any]) -> Bytes:
    if array.nbytes == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
