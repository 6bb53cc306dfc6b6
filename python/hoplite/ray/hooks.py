"""Transparent mode: Ray's own serialisation hands large values to Hoplite, in every process of a job.

`install` adds reducers to Ray's pickler. It also wraps some of Ray's methods and one class: see `_WRAPPERS`.
The driver calls it. Workers call it in a setup hook of the job's runtime environment.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import ray
from ray._common.utils import load_class
from ray._private import serialization
from ray._private.serialization import SerializationContext
from ray._private.worker import Worker
from ray.actor import ActorClass, ActorHandle
from ray.cloudpickle import CloudPickler
from ray.remote_function import RemoteFunction

from hoplite.errors import HopliteError
from hoplite.ray.errors import ObjectFetchTimedOutError
from hoplite.ray.recovery.rebuilder import record, record_actor, record_method
from hoplite.ray.settings import THRESHOLD_VARIABLE, TRANSPARENT_VARIABLE
from hoplite.ray.values.batched_fetch import parts_noted, with_prefetch
from hoplite.ray.values.forms import kinds
from hoplite.ray.values.generator_guards import observe_task_ends
from hoplite.ray.values.handles import guards_held, loading_until, unavailable_here
from hoplite.ray.values.reducers import Reducer, reducer_of
from hoplite.timeouts import Deadline

__all__ = ["install", "is_in_runtime_env", "runtime_env", "uninstall"]

HOOK = "worker_process_setup_hook"

Method = Callable[..., Any]

_originals: dict[tuple[object, str], Method] = {}

_before: dict[type, Reducer | None] = {}
"""The reducer of each type before `install`. None: its own `__reduce_ex__`."""


def install() -> None:
    """From now on, large values that this process serialises go through Hoplite. May be called twice."""
    for (owner, name), wrapper in _WRAPPERS.items():
        if (owner, name) not in _originals:
            _originals[owner, name] = original = getattr(owner, name)
            setattr(owner, name, functools.wraps(original)(wrapper(original)))
    _register_kinds()
    observe_task_ends()


def uninstall() -> None:
    """Undo `install`. Values that were sent before can still be got."""
    global _modules_seen
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()
    for kind, before in _before.items():
        CloudPickler.dispatch.pop(kind, None)
        if before is not None:
            CloudPickler.dispatch[kind] = before
    _before.clear()
    _modules_seen = 0


def runtime_env(env: Any = None, *, threshold: int | None = None) -> dict[str, Any]:
    """`env`, a runtime environment of Ray's (default: none), with the transparent mode added.

    A setup hook in `env` still runs, after Hoplite's.
    """
    merged = dict(env or {})
    hook = merged.get(HOOK)
    # A single hook is given by its name, so that jobs with equal environments can share workers.
    merged[HOOK] = f"{__name__}.install" if hook is None else _followed_by(hook)
    variables = {TRANSPARENT_VARIABLE: "1"}
    if threshold is not None:
        variables[THRESHOLD_VARIABLE] = str(threshold)
    merged["env_vars"] = {**merged.get("env_vars", {}), **variables}
    return merged


def is_in_runtime_env(env: Any) -> bool:
    """Whether `runtime_env` made this environment."""
    return TRANSPARENT_VARIABLE in (env or {}).get("env_vars", {})


def _followed_by(hook: str | Callable[[], None]) -> Callable[[], None]:
    def setup() -> None:
        install()
        follow = load_class(hook) if isinstance(hook, str) else hook
        follow()

    return setup


_modules_seen = 0
"""The number of loaded modules when the types were last registered."""


def _register_kinds() -> None:
    """Register the types of libraries imported since the last call. Called for each value."""
    global _modules_seen
    # A library's import adds its last module before its first value exists.
    modules = len(sys.modules)
    if modules == _modules_seen:
        return
    for kind in kinds():
        if kind not in _before:
            before = CloudPickler.dispatch.get(kind)
            CloudPickler.dispatch[kind] = reducer_of(kind)
            _before[kind] = before
    _modules_seen = modules


def _with_kinds(serialize: Method) -> Method:
    def method(*args: Any, **kwargs: Any) -> Any:
        _register_kinds()
        with parts_noted():
            return serialize(*args, **kwargs)

    return method


def _with_prefetch(serialized: Method) -> Method:
    def method(metadata: bytes, stream: bytes, *rest: Any) -> Any:
        return serialized(metadata, with_prefetch(stream), *rest)

    return method


def _with_lost_error(deserialize: Method) -> Method:
    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            return deserialize(*args, **kwargs)
        except HopliteError as error:
            # The error becomes the value: Ray raises it wherever this value is needed.
            return unavailable_here(error)

    return method


def _in_time(get_objects: Method) -> Method:
    def method(self: Worker, references: Any, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
        # To Ray, a negative time-out means none.
        if timeout is None or timeout < 0:
            return get_objects(self, references, timeout, *args, **kwargs)
        deadline = Deadline(timeout)
        try:
            with loading_until(deadline):
                return get_objects(self, references, timeout, *args, **kwargs)
        except ObjectFetchTimedOutError as error:
            # An error of the task itself is its result, even after the deadline.
            if not deadline.is_over() or isinstance(error, ray.exceptions.RayTaskError):
                raise
            raise ray.exceptions.GetTimeoutError(str(error)) from error

    return method


def _with_guards_held(submit: Method) -> Method:
    def method(*args: Any, **kwargs: Any) -> Any:
        with guards_held():
            return submit(*args, **kwargs)

    return method


def _with_function_recorded(submit: Method) -> Method:
    def method(function: RemoteFunction, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        with guards_held():
            results = submit(function, args, kwargs, **options)
        record(function, args, kwargs, options, results)
        return results

    return method


def _with_actor_recorded(create: Method) -> Method:
    def method(actor_class: ActorClass, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        with guards_held():
            actor = create(actor_class, args, kwargs, **options)
        record_actor(actor, args, kwargs)
        return actor

    return method


def _with_method_recorded(submit: Method) -> Method:
    def method(
        actor: ActorHandle, method_name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> Any:
        with guards_held():
            results = submit(actor, method_name, args, kwargs, **options)
        record_method(actor, method_name, args, kwargs, options, results)
        return results

    return method


_WRAPPERS: dict[tuple[object, str], Callable[[Method], Method]] = {
    (SerializationContext, "_serialize_to_pickle5"): _with_kinds,
    (serialization, "Pickle5SerializedObject"): _with_prefetch,
    (SerializationContext, "_deserialize_object"): _with_lost_error,
    (Worker, "get_objects"): _in_time,
    (Worker, "put_object"): _with_guards_held,
    (RemoteFunction, "_remote"): _with_function_recorded,
    (ActorClass, "_remote"): _with_actor_recorded,
    (ActorHandle, "_actor_method_call"): _with_method_recorded,
}
"""The wrapped methods and the wrapped class of Ray's, each with the function that wraps it."""
