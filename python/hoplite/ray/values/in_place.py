"""Arrays that are made in the node's store, so that sending them copies nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from hoplite.client import Client
from hoplite.creation import Creation, Draft
from hoplite.errors import NodeUnreachable, StoreFull, TimedOut
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.guards import id_of
from hoplite.ray.nodes.lookup import require_connection
from hoplite.ray.settings import SPACE_TIMEOUT, threshold
from hoplite.ray.values.forms import Form, form_of

__all__ = ["empty", "seal_in_place"]


@dataclass(frozen=True, slots=True)
class _StoreArray:
    """Where an array lies that was not sent yet. It refers to the guard, and not to the array."""

    guard: ray.ObjectRef
    client: Client
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def is_as_made(self, array: npt.NDArray[Any]) -> bool:
        """Whether `array` is what the object's header says: one may set an array's shape and dtype."""
        return array.shape == self.shape and array.dtype == self.dtype and array.flags.c_contiguous


_unsent: dict[int, _StoreArray] = {}
"""By the `id` of their arrays, all of which are alive."""


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """As `numpy.empty`, in this node's store: returned by a task, passed or put, it is not copied.

    That holds for the array itself; views of it are copied when they are sent, as all other arrays. Once
    sent, it is read-only, and views made before must not be written to any more.

    Arrays below the threshold are NumPy's own, as are those of a kind that Hoplite does not send, and
    those for which the store has no room within a second.
    """
    require_connection()
    private = np.empty(shape, dtype)
    if private.nbytes < threshold() or form_of(private) is not Form.ARRAY:
        return private
    try:
        return connection.call(lambda way: _in_store(way, private))
    except (NodeUnreachable, StoreFull, TimedOut):
        return private


def _in_store(way: connection.Connection, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    guard = way.guards.take()
    array = way.client.create(id_of(guard), like.shape, like.dtype, timeout=SPACE_TIMEOUT).array
    _unsent[id(array)] = _StoreArray(guard, way.client, array.shape, array.dtype)
    # Its memory is given back with the array, to which all views of it refer: it lies on no other array.
    weakref.finalize(array, _unsent.pop, id(array), None).atexit = False
    return array


def seal_in_place(array: Any) -> ray.ObjectRef | None:
    """If `array` is of `empty` and was not sent yet, this sends it; gives its guard.

    Raises what `Creation.seal` raises: then it is an array as any other, whose bytes are still there.
    """
    made = _unsent.pop(id(array), None)
    if made is None or not made.is_as_made(array):
        return None
    Creation(Draft(id_of(made.guard), array, array.base), made.client).seal()
    return made.guard
