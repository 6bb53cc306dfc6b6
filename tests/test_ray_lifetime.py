"""An object lives in Hoplite exactly as long as Ray has references to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, copies, goes_back_to, on
from ray_objects import Gate

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")
connection = pytest.importorskip("hoplite.ray.nodes.connection")
generator_guards = pytest.importorskip("hoplite.ray.values.generator_guards")

pytestmark = [*IGNORED, pytest.mark.usefixtures("explicit")]

LENGTH = 1 << 20

YIELDS_SECONDS_MAX = 60.0
"""Seconds, longer than the test of a running generator takes."""


@hoplite_ray.remote
def make(value: int) -> np.ndarray:
    return np.full(LENGTH, value, np.uint8)


class Holder:
    """Holds references until `drop`. They are in lists, so that Ray does not get their values."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def hold(self, references: list[Any]) -> None:
        self._held = references

    def first(self) -> int:
        return int(ray.get(self._held[0])[0])

    def make(self, value: int) -> np.ndarray:
        return np.full(LENGTH, value, np.uint8)

    def put(self, value: int) -> list[Any]:
        return [hoplite_ray.put(np.full(LENGTH, value, np.uint8))]


def test_borrowed_by_an_actor() -> None:
    holder = ray.remote(**on(1))(Holder).remote()
    reference = make.options(**on(2)).remote(3)
    ray.get(holder.hold.remote([reference]))
    del reference
    assert ray.get(holder.first.remote()) == 3
    assert copies() == 2
    ray.get(holder.hold.remote([]))
    goes_back_to(0)


def test_pooled_guards_are_released_before_shutdown() -> None:
    reference = hoplite_ray.put(np.ones(LENGTH, np.uint8))
    stock = connection.here().guards
    connection.disconnect()
    assert "hoplite-guards" not in [thread.name for thread in threading.enumerate()]
    assert stock._guards.empty()
    assert ray.get(reference)[0] == 1


def test_nested_in_another_object() -> None:
    outer = ray.put({"inner": [make.remote(4)]})
    inner = ray.get(outer)["inner"][0]
    assert ray.get(inner)[0] == 4
    del inner
    assert ray.get(ray.get(outer)["inner"][0])[-1] == 4
    del outer
    goes_back_to(0)


def test_captured_by_a_queued_task() -> None:
    @ray.remote
    def value_of(references: list[Any], after: Any) -> int:
        return int(ray.get(references[0])[0])

    gate = ray.remote(num_cpus=0)(Gate).remote()
    captured = hoplite_ray.put(np.full(LENGTH, 5, np.uint8))
    result = value_of.remote([captured], gate.passed.remote())
    del captured
    assert copies() == 1
    ray.get(gate.open.remote())
    assert ray.get(result) == 5
    goes_back_to(0)


def test_results_outlive_their_actor() -> None:
    actors = [hoplite_ray.remote(**on(i % 3))(Holder).remote() for i in range(6)]
    references = [actor.make.remote(i) for i, actor in enumerate(actors)]
    ray.wait(references, num_returns=len(references), fetch_local=False)
    for actor in actors:
        ray.kill(actor)
    assert [int(array[0]) for array in ray.get(references)] == list(range(6))
    del references
    goes_back_to(0)


class Recycling:
    """Yields an array, and takes it back."""

    def stream(self) -> Iterator[np.ndarray]:
        yield np.full(LENGTH, 7, np.uint8)

    def first(self, array: np.ndarray) -> int:
        return int(array[0])

    def lingering(self) -> int:
        return len(generator_guards._held)


def test_yielded_arrays_passed_back_to_their_maker() -> None:
    actor = hoplite_ray.remote(**on(1))(Recycling).remote()
    reference = next(actor.stream.remote())
    assert ray.get(actor.first.remote(reference)) == 7
    eventually(lambda: ray.get(actor.lingering.remote()) == 0, "its maker holds it no more")
    # Before the fix, the array was deleted a moment later.
    assert [ray.get(actor.first.remote(reference)) for _ in range(20)] == [7] * 20
    assert int(ray.get(reference)[0]) == 7
    del reference
    goes_back_to(0)


class Concurrent:
    """Yields an array and runs on until it is told to end. Meanwhile it takes the array back."""

    def __init__(self) -> None:
        self._end = threading.Event()

    def stream(self) -> Iterator[np.ndarray]:
        yield np.full(LENGTH, 7, np.uint8)
        self._end.wait(YIELDS_SECONDS_MAX)

    def first(self, array: np.ndarray) -> int:
        return int(array[0])

    def whole(self) -> np.ndarray:
        return np.full(LENGTH, 8, np.uint8)

    def lingering(self) -> int:
        return len(generator_guards._held)

    def end(self) -> None:
        self._end.set()


class Asynchronous(Concurrent):
    async def stream(self) -> AsyncIterator[np.ndarray]:  # type: ignore[override]
        yield np.full(LENGTH, 7, np.uint8)
        await asyncio.to_thread(self._end.wait, YIELDS_SECONDS_MAX)

    async def whole(self) -> np.ndarray:  # type: ignore[override]
        return np.full(LENGTH, 8, np.uint8)


@pytest.mark.parametrize("kind", [Concurrent, Asynchronous])
def test_yielded_arrays_passed_back_to_a_running_generator(kind: type) -> None:
    actor = hoplite_ray.remote(**on(1), max_concurrency=4)(kind).remote()
    stream = actor.stream.remote()
    reference = next(stream)
    assert [ray.get(actor.first.remote(reference)) for _ in range(20)] == [7] * 20
    eventually(lambda: ray.get(actor.lingering.remote()) == 0, "its maker holds nothing")
    assert int(ray.get(reference)[0]) == 7
    # Its results still go through Hoplite.
    whole = actor.whole.remote()
    assert int(ray.get(whole)[0]) == 8
    assert copies() == 2
    ray.get(actor.end.remote())
    del reference, whole
    goes_back_to(0)


def test_objects_of_a_dead_owner_are_deleted() -> None:
    owner = ray.remote(**on(1))(Holder).remote()
    (reference,) = ray.get(owner.put.remote(6))
    assert ray.get(reference)[0] == 6
    assert copies() >= 1
    ray.kill(owner)
    # As with Ray's own objects, no process can get it after its owner has died.
    goes_back_to(0)
    with pytest.raises(ray.exceptions.OwnerDiedError):
        ray.get(reference)


def test_many_objects_leave_nothing() -> None:
    for _ in range(10):
        assert sum(int(array[0]) for array in ray.get([make.remote(i) for i in range(10)])) == 45
    goes_back_to(0)
