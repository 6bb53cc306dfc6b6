"""The kinds of values that travel through Hoplite, and what their consumers get: see `Form`."""

from __future__ import annotations

import enum
import sys
from typing import Any

import numpy as np

from hoplite.client import Client
from hoplite.on_lost import OnLost

__all__ = ["Form", "form_of", "kinds", "received", "sent", "size_of", "spec_of"]


class Form(enum.IntEnum):
    """What a consumer sees."""

    ARRAY = 0
    """A read-only NumPy array in shared memory."""
    FORTRAN = 1
    """The same in column-major order, which travels as its transpose."""
    TENSOR = 2
    """A PyTorch tensor in private memory: PyTorch knows no read-only ones."""
    BUFFER = 3
    """An Arrow buffer in shared memory."""


ARRAY_KINDS = frozenset("biufcmMSUV")
"""NumPy's letters for what an object's header can say; `_is_plain` looks closer at V."""


def kinds() -> list[type]:
    """The types that have forms, of the libraries imported by now."""
    found: list[type] = [np.ndarray]
    # Imported for nobody: a value of theirs can only exist if someone has.
    if (torch := sys.modules.get("torch")) is not None and hasattr(torch, "Tensor"):
        found.append(torch.Tensor)
    if (pyarrow := sys.modules.get("pyarrow")) is not None and hasattr(pyarrow, "Buffer"):
        found.append(pyarrow.Buffer)
    return found


def size_of(value: Any) -> int:
    """Bytes of a value of one of `kinds`."""
    return int(value.size if _is_buffer(value) else value.nbytes)


def form_of(value: Any) -> Form | None:
    """The form of a value of one of `kinds`; None if its kind of content must stay with Ray."""
    if isinstance(value, np.ndarray):
        if not _is_plain(value.dtype):
            return None
        return Form.FORTRAN if value.flags.f_contiguous and not value.flags.c_contiguous else Form.ARRAY
    if _is_buffer(value):
        return Form.BUFFER if value.is_cpu else None
    import torch

    dense = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    # What autograd knows of a tensor is Ray's to carry, as are complex ones' lazy conjugates.
    plain = dense and not value.requires_grad and not value.is_conj() and not value.is_neg()
    return Form.TENSOR if plain else None


def spec_of(value: Any, form: Form) -> str:
    """The form, type and shape of a value of one of `kinds`, in a word."""
    if form is Form.BUFFER:
        return f"buffer({value.size})"
    kind = str(value.dtype) if form is Form.TENSOR else value.dtype.str
    order = " by columns" if form is Form.FORTRAN else ""
    return f"{kind}{tuple(value.shape)}{order}"


def sent(value: Any, form: Form) -> Any:
    """What to put."""
    return value.T if form is Form.FORTRAN else value


def received(client: Client, id: Any, form: Form, timeout: float | None, on_lost: OnLost) -> Any:
    """The object as `form` shows it; arguments and errors as of `Client.get`."""
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
    # Records, and V with fields, may hold alignment and titles that a header does not.
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
