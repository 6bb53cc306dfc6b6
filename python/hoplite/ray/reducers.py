"""How pickling hands large values over to Hoplite: one reducer for each kind of value."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ray._private.worker import global_worker
from ray.cloudpickle import CloudPickler

from hoplite.ray.forms import form_of, size_of
from hoplite.ray.handles import share
from hoplite.ray.settings import threshold

__all__ = ["Reducer", "reducer_of"]

Reducer = Callable[[Any], Any]
"""What `pickle` calls a reducer: from a value to its `__reduce__` tuple."""

PROTOCOL = 5
"""Ray's: with buffers out of band."""

_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()
"""Those of Hoplite's, of which one is enough."""


def reducer_of(kind: type) -> Reducer:
    """Reduces values of `kind` to handles, and those that stay with Ray as was done before."""
    before: Reducer = CloudPickler.dispatch.get(kind) or _reduced
    if before in _reducers:
        return before
    least = threshold()

    def reduce(value: Any) -> Any:
        # Outside of Ray's values, in closures and exceptions, nobody counts references.
        if size_of(value) < least or not _is_in_band():
            return before(value)
        form = form_of(value)
        handle = None if form is None else share(value, form)
        return before(value) if handle is None else handle.__reduce__()

    _reducers.add(reduce)
    return reduce


def _reduced(value: Any) -> Any:
    return value.__reduce_ex__(PROTOCOL)


def _is_in_band() -> bool:
    if not global_worker.connected:
        return False
    return bool(global_worker.get_serialization_context().is_in_band_serialization())
