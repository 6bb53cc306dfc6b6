"""Explicit mode: a value is wrapped so that its large parts, however deep, go through Hoplite."""

from __future__ import annotations

import functools
import inspect
import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from ray.cloudpickle import CloudPickler

from hoplite.errors import HopliteError
from hoplite.ray.values.batched_fetch import parts_noted, with_prefetch
from hoplite.ray.values.forms import kinds
from hoplite.ray.values.handle_unpickler import unpickled
from hoplite.ray.values.handles import unavailable_here
from hoplite.ray.values.pickled_names import PACKING_MODULE
from hoplite.ray.values.reducers import PROTOCOL, reducer_of

__all__ = ["Packed", "packing", "packing_actor", "unpacked"]

assert __name__ == PACKING_MODULE, "pickles name this module"


class _Pickler(CloudPickler):  # type: ignore[misc]
    """Ray's pickler with Hoplite's reducers added."""

    def __init__(self, stream: io.BytesIO, take: Callable[[pickle.PickleBuffer], None]) -> None:
        # Set before the base's `__init__`, which reads it once.
        self.dispatch_table = ChainMap(
            {kind: reducer_of(kind) for kind in kinds()}, CloudPickler.dispatch_table
        )
        super().__init__(stream, protocol=PROTOCOL, buffer_callback=take)


class Packed:
    """Pickles as `value` does, with handles in place of large parts. Unpickles as `value` itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        with parts_noted():
            _Pickler(stream, buffers.append).dump(self.value)
            return unpacked, (with_prefetch(stream.getvalue()), *buffers)


class PackedSeveral(Packed):
    """A packed tuple or list. Ray may take its items as separate results (`num_returns`)."""

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Packed]:
        return map(Packed, self.value)


def unpacked(stream: bytes, *buffers: Any) -> Any:
    """The packed value. Pickles of packed values name this function."""
    try:
        return unpickled(stream, buffers)
    except HopliteError as error:
        # The error becomes the value: Ray raises it wherever this value is needed.
        return unavailable_here(error)


def _packed(value: Any) -> Packed:
    return PackedSeveral(value) if type(value) in (tuple, list) else Packed(value)


def packing(function: Callable[..., Any], call: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function like `function`, of any kind, whose results or yielded items are packed.

    `call` (default: `function`) is called in its place.
    """
    called = function if call is None else call
    packed: Callable[..., Any]
    if inspect.isasyncgenfunction(function):

        async def packed(*args: Any, **kwargs: Any) -> Any:
            async for item in called(*args, **kwargs):
                yield _packed(item)

    elif inspect.isgeneratorfunction(function):

        def packed(*args: Any, **kwargs: Any) -> Any:
            for item in called(*args, **kwargs):
                yield _packed(item)

    elif inspect.iscoroutinefunction(function):

        async def packed(*args: Any, **kwargs: Any) -> Any:
            return _packed(await called(*args, **kwargs))

    else:

        def packed(*args: Any, **kwargs: Any) -> Any:
            return _packed(called(*args, **kwargs))

    return functools.wraps(function)(packed)


def packing_actor(actor: type) -> type:
    """A class with the public methods of `actor`, whose results are packed.

    It wraps the class and is no subclass: an actor that calls its own methods gets unpacked results.
    """

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        self._actor = actor(*args, **kwargs)

    own = inspect.getattr_static(actor, "__init__")
    if isinstance(own, FunctionType):
        # Ray checks arguments against this signature. That of `object.__init__` says nothing.
        functools.update_wrapper(start, own)

    methods = {
        name: packing(member, _delegating(name))
        for name in dir(actor)
        if isinstance(member := inspect.getattr_static(actor, name), FunctionType)
        and (name == "__call__" or not name.startswith("__"))
    }
    about = {name: getattr(actor, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(actor.__name__, (), {**about, **methods, "__init__": start})


def _delegating(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._actor, name)(*args, **kwargs)

    return call
