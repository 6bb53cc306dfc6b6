"""Remote functions and actor methods that a process has called and can call again."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.remote_function import RemoteFunction

from hoplite.errors import HopliteError
from hoplite.ids import ObjectId
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.guards import id_of_hex
from hoplite.ray.nodes.lookup import node_actor_of
from hoplite.ray.recovery.arguments import Actor, CannotRunAgain
from hoplite.ray.recovery.origins import parts_of
from hoplite.ray.recovery.resource_lending import Lender, lent_options
from hoplite.ray.values.forms import sent, spec_of
from hoplite.ray.values.packing import Packed

__all__ = ["Function", "Method", "is_rebuild"]

GUARDS_TIMEOUT = 30.0
"""Seconds to wait for new guards from the actor of the node where a task runs again."""

BACKPRESSURE = "_generator_backpressure_num_objects"
"""An option of Ray's for generators. The call that rebuilds their items is no generator."""

Args = list[Any]
Kwargs = dict[str, Any]


class Part(NamedTuple):
    """A large value in a result."""

    guard: str
    """The guard's id in hex."""
    spec: str
    """The value's type and shape."""


Parts = dict[int, Part]
"""The values to rebuild, by their index among the large values of a result."""


class Function(NamedTuple):
    """A remote function."""

    function: RemoteFunction

    @property
    def name(self) -> str:
        """The function's name, as in its definition."""
        return str(self.function._function.__name__)

    def call(self, args: Args, kwargs: Kwargs, options: Kwargs) -> Any:
        """The references that another call returns."""
        return self.function._remote(args=args, kwargs=kwargs, **options)

    def call_to_rebuild(
        self, args: Args, kwargs: Kwargs, options: Kwargs, retries: int, lender: Lender | None
    ) -> ray.ObjectRef:
        """A call that rebuilds parts of the result, and returns their new guards.

        `args`: the number of results, the parts, and the arguments of the first call. `lender`: the task on
        whose resources it runs.
        """
        environment: dict[str, str] = {}
        if lender is not None and (on_theirs := lent_options(options, lender)) is not None:
            options, environment = on_theirs
        # Ray, and users who look at its state, see the same function.
        options = {"name": self.name, **options, "num_returns": 1, "max_retries": retries}
        options.pop(BACKPRESSURE, None)
        args = [self.function._function, environment, *args]
        # A process with GPUs exits after the task, as for Ray's own tasks. Otherwise it would keep the
        # devices open.
        again = _REBUILD_AND_EXIT if options.get("num_gpus") or environment else _REBUILD
        return again._remote(args=args, kwargs=kwargs, **options)


class Method(NamedTuple):
    """A method of an actor. The actor may end when nobody else refers to it."""

    actor: Actor
    name: str

    def call(self, args: Args, kwargs: Kwargs, options: Kwargs) -> Any:
        """As of `Function`. Raises `CannotRunAgain`."""
        return self.actor.handle()._actor_method_call(self.name, args=args, kwargs=kwargs, **options)

    def call_to_rebuild(
        self, args: Args, kwargs: Kwargs, options: Kwargs, retries: int, lender: Lender | None
    ) -> ray.ObjectRef:
        """As of `Function`, on the actor's own resources. Raises `CannotRunAgain`."""
        call = self.actor.handle().__ray_call__.options(
            max_task_retries=retries, concurrency_group=options.get("concurrency_group_name")
        )
        return call.remote(_rebuild_method, self.name, *args, **kwargs)


def is_rebuild(function: RemoteFunction) -> bool:
    """Whether this function only rebuilds what another has made."""
    return function is _REBUILD or function is _REBUILD_AND_EXIT


def _rebuild(
    function: Callable[..., Any],
    environment: dict[str, str],
    outputs: int,
    parts: Parts,
    /,
    *args: Any,
    **kwargs: Any,
) -> list[ray.ObjectRef] | CannotRunAgain:
    guards = _new_guards(function.__name__, parts)
    if isinstance(guards, CannotRunAgain):
        return guards
    os.environ.update(environment)
    refusal = _put_parts(function(*args, **kwargs), function.__name__, outputs, parts)
    return guards if refusal is None else refusal


def _rebuild_method(
    actor: Any, name: str, outputs: int, parts: Parts, /, *args: Any, **kwargs: Any
) -> list[ray.ObjectRef] | CannotRunAgain:
    guards = _new_guards(name, parts)
    if isinstance(guards, CannotRunAgain):
        return guards
    refusal = _put_parts(getattr(actor, name)(*args, **kwargs), name, outputs, parts)
    return guards if refusal is None else refusal


def _new_guards(name: str, parts: Parts) -> list[ray.ObjectRef] | CannotRunAgain:
    """New guards, requested before the function begins: by them its caller knows that it has begun."""
    try:
        node_actor = node_actor_of(ray.get_runtime_context().get_node_id(), GUARDS_TIMEOUT)
        request = node_actor.replacement_guards.remote([part.guard for part in parts.values()])
        guards: list[ray.ObjectRef] = ray.get(request, timeout=GUARDS_TIMEOUT)
    except (HopliteError, ray.exceptions.RayError) as error:
        # This is no error of the function.
        return CannotRunAgain(f"{name} could not run again: {type(error).__name__}: {error}")
    return guards


def _put_parts(result: Any, name: str, outputs: int, parts: Parts) -> CannotRunAgain | None:
    """In a task: put `parts` of the values that the function `name` has returned, or yields.

    Returns the reason if they differ from the first run. Ray would answer an exception with another run.
    """
    missing, at = dict(parts), 0
    for output in result if outputs > 1 or inspect.isgenerator(result) else [result]:
        for value, form in parts_of(Packed(output)):
            if (part := missing.pop(at, None)) is not None:
                if (spec := spec_of(value, form)) != part.spec:
                    return CannotRunAgain(
                        f"{name} has run again, and returned {spec} in place of {part.spec}"
                    )
                try:
                    _put(sent(value, form), id_of_hex(part.guard))
                except HopliteError as error:
                    return CannotRunAgain(
                        f"what {name} made again could not be put: {type(error).__name__}: {error}"
                    )
            at += 1
        if not missing:
            return None
    return CannotRunAgain(f"{name} has run again, and returned {at} large values: not as many as before")


def _put(value: Any, id: ObjectId) -> None:
    connection.call(lambda conn: conn.client.put(value, id))


_REBUILD = ray.remote(_rebuild)
_REBUILD_AND_EXIT = ray.remote(max_calls=1)(_rebuild)
