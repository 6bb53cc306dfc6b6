"""The types of values that travel through Hoplite, and the `Form` in which consumers get them."""

from __future__ import annotations

import enum
import sys
from typing import Any

import numpy as np

from hoplite.client import Client
from hoplite.on_lost import OnLost

__all__ = ["Form", "form_of", "kinds", "received", "sent", "size_of", "spec_of"]


class Form(enum.IntEnum):
    """The form in which a consumer gets a value."""

    ARRAY = 0
    """A read-only NumPy array in shared memory."""
    FORTRAN = 1
    """A read-only NumPy array in column-major order. It travels as its transpose."""
    TENSOR = 2
    """A PyTorch tensor in private memory: PyTorch has no read-only tensors."""
    BUFFER = 3
    """An Arrow buffer in shared memory."""


ARRAY_KINDS = frozenset("biufcmMSUV")
"""NumPy's letters of the dtypes that an object's header can describe. `_is_plain` looks closer at V."""


def kinds() -> list[type]:
    """The types that have forms, of the libraries imported so far."""
    found: list[type] = [np.ndarray]
    # The libraries are not imported here: a value of theirs exists only if the program has imported them.
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "Tensor"):
        found.append(torch.Tensor)
    if (pyarrow := sys.modules.get("pyarrow")) is not None and hasattr(pyarrow, "Buffer"):
        found.append(pyarrow.Buffer)
    return found


def size_of(value: Any) -> int:
    """Bytes of a value of one of `kinds`."""
    return int(value.size if _is_buffer(value) else value.nbytes)


def form_of(value: Any) -> Form | None:
    """The form of a value of one of `kinds`. None if its content must stay with Ray."""
    if isinstance(value, np.ndarray):
        if not _is_plain(value.dtype):
            return None
        return Form.FORTRAN if value.flags.f_contiguous and not value.flags.c_contiguous else Form.ARRAY
    if _is_buffer(value):
        return Form.BUFFER if value.is_cpu else None
    import torch

    dense = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    # Ray must carry a tensor's autograd state, and the lazy conjugation and negation of complex tensors.
    plain = dense and not value.requires_grad and not value.is_conj() and not value.is_neg()
    return Form.TENSOR if plain else None


def spec_of(value: Any, form: Form) -> str:
    """The form, type and shape of a value of one of `kinds`, in one word."""
    if form is Form.BUFFER:
        return f"buffer({value.size})"
    kind = str(value.dtype) if form is Form.TENSOR else value.dtype.str
    order = " by columns" if form is Form.FORTRAN else ""
    return f"{kind}{tuple(value.shape)}{order}"


def sent(value: Any, form: Form) -> Any:
    """The array to put for `value`."""
    return value.T if form is Form.FORTRAN else value


def received(client: Client, id: Any, form: Form, timeout: float | None, on_lost: OnLost) -> Any:
    """The object in `form`. Arguments and errors as of `Client.get`."""
    if form is Form.TENSOR:
        return client.get_torch(id, timeout=timeout, on_lost=on_lost)
    array = client.get(id, timeout=timeout, on_lost=on_lost)
    if form is Form.FORTRAN:
        return array.T
    if form is Form.BUFFER:
        import pyarrow

        return pyarrow.py_buffer(array)
    return array


def _is_plain(dtype: np.dtype[Any]) -> bool:
    # Records, and V with fields, may have alignment and titles, which a header does not describe.
    return (
        dtype.kind in ARRAY_KINDS
        and not dtype.hasobject
        and dtype.names is None
        and dtype.subdtype is None
        and dtype.metadata is None
    )


def _is_buffer(value: Any) -> bool:
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(value, pyarrow.Buffer)
