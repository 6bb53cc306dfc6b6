"""Reducers that hand large values to Hoplite during pickling, one for each type."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from ray import cloudpickle
from ray._private.serialization import SerializationContext
from ray._private.worker import global_worker
from ray.cloudpickle import CloudPickler

from hoplite.ray.nodes import connection
from hoplite.ray.settings import threshold
from hoplite.ray.values.forms import form_of, size_of
from hoplite.ray.values.handles import put_as_handle

__all__ = ["Reducer", "reducer_of"]

Reducer = Callable[[Any], Any]
"""A reducer in the sense of `pickle`: from a value to its `__reduce__` tuple."""

PROTOCOL = 5
"""Ray's pickle protocol: 5 has buffers out of band."""

UNCOUNTED = (
    # The channels of compiled graphs.
    "ray.experimental.channel.",
    # It measures the bytes of a row of Ray Data's.
    "ray.data._internal.size_estimator",
    # Ray Serve's own messages.
    "ray.serve._private.",
)
"""Prefixes of modules that use Ray's serialisation for something else than objects and calls."""

_SERIALIZE = SerializationContext.serialize.__code__

_DUMPS = cloudpickle.dumps.__code__

_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()
"""Hoplite's own reducers, which must not wrap each other."""


def reducer_of(kind: type) -> Reducer:
    """A reducer of `kind`: large values become handles, and the others are reduced as before."""
    before: Reducer = CloudPickler.dispatch.get(kind) or _reduced
    if before in _reducers:
        return before
    least = threshold()

    def reduce(value: Any) -> Any:
        if size_of(value) < least or not _is_counted():
            return before(value)
        form = form_of(value)
        handle = None if form is None else put_as_handle(value, form)
        return before(value) if handle is None else handle.__reduce__()

    _reducers.add(reduce)
    return reduce


def _reduced(value: Any) -> Any:
    return value.__reduce_ex__(PROTOCOL)


def _is_counted() -> bool:
    """Whether Ray counts references in the pickle that this thread makes. It does not in closures and
    exceptions."""
    if not global_worker.connected or not connection.is_expected():
        return False
    context = global_worker.get_serialization_context()
    if not context.is_in_band_serialization():
        return False
    # Ray Direct Transport takes the tensors out, and serialises the rest.
    if getattr(context._thread_local, "use_external_transport", False):
        return False
    return _is_ones_own()


def _is_ones_own() -> bool:
    """Whether Ray is pickling an object or a call itself: no message, and no bytes inside of an object.

    Such bytes may outlive the object they were in, and with it the references that Ray has found in them.
    """
    frame, dumps = sys._getframe(), 0
    while frame.f_code is not _SERIALIZE:
        dumps += frame.f_code is _DUMPS
        if frame.f_back is None:
            return dumps <= 1
        frame = frame.f_back
    caller = "" if frame.f_back is None else str(frame.f_back.f_globals.get("__name__"))
    return dumps <= 1 and not caller.startswith(UNCOUNTED)
