"""Reducers that hand large values to Hoplite during pickling, one for each kind of value."""

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
"""What `pickle` calls a reducer: from a value to its `__reduce__` tuple."""

PROTOCOL = 5
"""Ray's: with buffers out of band."""

UNCOUNTED = (
    # The channels of compiled graphs.
    "ray.experimental.channel.",
    # Wants to know how many bytes a row of Ray Data's has.
    "ray.data._internal.size_estimator",
    # Messages of Ray Serve's own.
    "ray.serve._private.",
)
"""How the names of modules begin that serialise as Ray does for objects and calls, but make none of it."""

_SERIALIZE = SerializationContext.serialize.__code__

_DUMPS = cloudpickle.dumps.__code__

_reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()
"""Those of Hoplite's, of which one is enough."""


def reducer_of(kind: type) -> Reducer:
    """Reduces values of `kind` to handles, and those that stay with Ray as was done before."""
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
    """Whether Ray counts references in what this thread pickles; not in closures and exceptions, say."""
    if not global_worker.connected or not connection.is_expected():
        return False
    context = global_worker.get_serialization_context()
    if not context.is_in_band_serialization():
        return False
    # Ray Direct Transport takes the tensors out, and serialises what is left.
    if getattr(context._thread_local, "use_external_transport", False):
        return False
    return _is_ones_own()


def _is_ones_own() -> bool:
    """Whether what is being pickled is an object or a call of Ray's: no message, and no bytes inside of one.

    Those outlive what they were in, and with it the references that Ray has found in them.
    """
    frame, dumps = sys._getframe(), 0
    while frame.f_code is not _SERIALIZE:
        dumps += frame.f_code is _DUMPS
        if frame.f_back is None:
            return dumps <= 1
        frame = frame.f_back
    caller = "" if frame.f_back is None else str(frame.f_back.f_globals.get("__name__"))
    return dumps <= 1 and not caller.startswith(UNCOUNTED)
