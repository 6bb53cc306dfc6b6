"""Arrays made in the node's store, so that sending them needs no copy."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from hoplite.creation import sealer
from hoplite.errors import NodeUnreachable, StoreFull, TimedOut
from hoplite.ids import ObjectId
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.guards import id_of
from hoplite.ray.nodes.lookup import require_connection
from hoplite.ray.settings import SPACE_TIMEOUT, threshold
from hoplite.ray.values.forms import Form, form_of

__all__ = ["empty", "seal_in_place"]


@dataclass(frozen=True, slots=True)
class _StoreArray:
    """The object under an array that was not sent yet. It refers to the guard, and not to the array."""

    guard: ray.ObjectRef
    seal: Callable[[npt.NDArray[Any]], ObjectId]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def is_as_made(self, array: npt.NDArray[Any]) -> bool:
        """Whether `array` still matches the object's header. Users may set an array's shape and dtype."""
        return array.shape == self.shape and array.dtype == self.dtype and array.flags.c_contiguous


_unsent: dict[int, _StoreArray] = {}
"""Arrays that were not sent yet, by their `id`. All are alive."""


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """As `numpy.empty`, in this node's store. Returned by a task, passed or put, the array is not copied.

    That holds for the array itself. Views of it are copied when they are sent, like all other arrays. Once
    sent, the array is read-only, and earlier views must not be written to any more.

    Arrays below the threshold are NumPy's own. So are arrays that Hoplite does not send, and those for which
    the store has no space within a second.
    """
    require_connection()
    private = np.empty(shape, dtype)
    if private.nbytes < threshold() or form_of(private) is not Form.ARRAY:
        return private
    try:
        return connection.call(lambda conn: _in_store(conn, private))
    except (NodeUnreachable, StoreFull, TimedOut):
        return private


def _in_store(conn: connection.Connection, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    guard = conn.guards.take()
    creation = conn.client.create(id_of(guard), like.shape, like.dtype, timeout=SPACE_TIMEOUT)
    array = creation.array
    _unsent[id(array)] = _StoreArray(guard, sealer(creation), array.shape, array.dtype)
    # All views refer to this array, as it lies on no other array. So its memory can go when it is collected.
    weakref.finalize(array, _unsent.pop, id(array), None).atexit = False
    return array


def seal_in_place(array: Any) -> ray.ObjectRef | None:
    """Send `array` if it was made by `empty` and not sent before. Returns its guard, or None.

    Raises the errors of `Creation.seal`. After an error it is an ordinary array, whose bytes are still there.
    """
    made = _unsent.pop(id(array), None)
    if made is None or not made.is_as_made(array):
        return None
    made.seal(array)
    return made.guard
