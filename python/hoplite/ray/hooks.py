"""The transparent way: Ray's own serialisation, in every process of a job, hands large values over.

`install` puts reducers into Ray's pickler and surrounds two methods of its `SerializationContext`. The
driver calls it; workers do through a setup hook in the job's runtime environment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ray._common.utils import load_class
from ray._private.serialization import SerializationContext
from ray.cloudpickle import CloudPickler

from hoplite.errors import HopliteError
from hoplite.ray.forms import kinds
from hoplite.ray.handles import unavailable_here
from hoplite.ray.reducers import Reducer, reducer_of
from hoplite.ray.settings import THRESHOLD_VARIABLE, TRANSPARENT_VARIABLE

__all__ = ["install", "is_in_runtime_env", "runtime_env", "uninstall"]

HOOK = "worker_process_setup_hook"

_before: dict[type, Reducer | None] = {}
"""What reduced each kind before; None: its own `__reduce_ex__`."""

_serialize = SerializationContext._serialize_to_pickle5
_deserialize = SerializationContext._deserialize_object


def install() -> None:
    """Large values that this process serialises go through Hoplite from now on. May be called twice."""
    SerializationContext._serialize_to_pickle5 = _serialize_with_kinds
    SerializationContext._deserialize_object = _deserialize_or_lost
    _register_kinds()


def uninstall() -> None:
    """Undo `install`; values that travel already can still be got."""
    SerializationContext._serialize_to_pickle5 = _serialize
    SerializationContext._deserialize_object = _deserialize
    for kind, before in _before.items():
        CloudPickler.dispatch.pop(kind, None)
        if before is not None:
            CloudPickler.dispatch[kind] = before
    _before.clear()


def runtime_env(env: Any = None, *, threshold: int | None = None) -> dict[str, Any]:
    """`env`, a runtime environment of Ray's (default: none), with the transparent mode added to it.

    A setup hook that is in it already still runs, after Hoplite's.
    """
    merged = dict(env or {})
    hook = merged.get(HOOK)
    # By its name, where that is all: then workers of several jobs can be the same.
    merged[HOOK] = f"{__name__}.install" if hook is None else _followed_by(hook)
    variables = {TRANSPARENT_VARIABLE: "1"}
    if threshold is not None:
        variables[THRESHOLD_VARIABLE] = str(threshold)
    merged["env_vars"] = {**merged.get("env_vars", {}), **variables}
    return merged


def is_in_runtime_env(env: Any) -> bool:
    """Whether `runtime_env` made `env`."""
    return TRANSPARENT_VARIABLE in (env or {}).get("env_vars", {})


def _followed_by(hook: str | Callable[[], None]) -> Callable[[], None]:
    def setup() -> None:
        install()
        follow = load_class(hook) if isinstance(hook, str) else hook
        follow()

    return setup


def _register_kinds() -> None:
    """Libraries are imported at any time, so this is looked at with each value."""
    for kind in kinds():
        if kind not in _before:
            before = CloudPickler.dispatch.get(kind)
            CloudPickler.dispatch[kind] = reducer_of(kind)
            _before[kind] = before


@functools.wraps(_serialize)
def _serialize_with_kinds(context: SerializationContext, metadata: Any, value: Any) -> Any:
    _register_kinds()
    return _serialize(context, metadata, value)


@functools.wraps(_deserialize)
def _deserialize_or_lost(context: SerializationContext, *args: Any) -> Any:
    try:
        return _deserialize(context, *args)
    except HopliteError as error:
        # An error as the value: Ray raises it wherever this value is needed.
        return unavailable_here(error)
