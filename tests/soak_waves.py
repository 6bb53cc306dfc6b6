"""The operations of the soak: all that Ray programs do with objects. Each kind returns its number of objects.

All kinds can also run on Ray alone, to see which growth is Ray's own.
"""

from __future__ import annotations

import functools
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hoplite
import numpy as np
import ray
from ray_cluster import NODES, TIMEOUT

ROOT = Path(__file__).parent.parent

THRESHOLD = 64 << 10
"""Threshold in bytes. It is low, so that 20,000 objects take only minutes."""

SIZES = (THRESHOLD, 2 * THRESHOLD)
"""Sizes of objects in bytes. Processes cache copies of objects of the first size, and none of the second."""

GROUP = 6
"""Number of sources of a reduction, and of objects that an actor or a call gets at once."""

DRIVER_SECONDS = 120.0
"""Seconds for another driver to start itself and its workers and to make its objects, on a busy machine."""


def there(node: int) -> dict[str, Any]:
    """Options of a task on node number `node`. As many run at once as the node has processors."""
    return {"resources": {f"node{node % NODES}": 0.01}, "num_cpus": 1}


def beside(node: int) -> dict[str, Any]:
    """Options of an actor on node number `node` that takes no processor."""
    return {**there(node), "num_cpus": 0}


def array_of(value: int) -> np.ndarray:
    """An object of one of `SIZES` that is filled with the value."""
    return np.full(SIZES[value % len(SIZES)] // 4, value, np.float32)


def first_of(array: np.ndarray) -> int:
    assert array[0] == array[-1]
    return int(array[0])


@ray.remote
def make(value: int) -> np.ndarray:
    return array_of(value)


@ray.remote
def first(array: np.ndarray) -> int:
    return first_of(array)


@ray.remote
def firsts(references: list[Any]) -> list[int]:
    return [first_of(array) for array in ray.get(references)]


@ray.remote(num_returns=2)
def pair(array: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    return array + 1, {"deep": [array + 2, array + 3]}


@ray.remote(num_returns="streaming")
def stream(values: list[int]) -> Iterator[np.ndarray]:
    for value in values:
        yield array_of(value)


@ray.remote(max_retries=0)
def fail(array: np.ndarray) -> np.ndarray:
    raise ValueError(f"as {first_of(array)} should")


@ray.remote(max_retries=1)
def make_after_a_crash(array: np.ndarray, crashed: Path) -> np.ndarray:
    if not crashed.exists():
        crashed.touch()
        ray.put(array + 1)
        os.kill(os.getpid(), signal.SIGKILL)
    return array + 2


@ray.remote
def wait_for(gate: Any, array: np.ndarray, references: list[Any]) -> int:
    ray.get(gate.passed.remote())
    return first_of(array)


@ray.remote
def sum_of(references: list[Any]) -> np.ndarray:
    total: np.ndarray = functools.reduce(operator.add, ray.get(references))
    return total


@ray.remote(num_cpus=0)
class Gate:
    """A gate that never opens."""

    def __init__(self) -> None:
        import asyncio

        self._reached, self._open = asyncio.Event(), asyncio.Event()

    async def passed(self) -> None:
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        """Returns when a call waits at the gate."""
        await self._reached.wait()


@ray.remote(num_cpus=0)
class Holder:
    """Borrows the objects that it is given, and makes and puts objects of its own."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def hold(self, references: list[Any]) -> list[int]:
        self._held = references
        return [first_of(array) for array in ray.get(references)]

    def keep(self, *arrays: np.ndarray) -> list[int]:
        """Keep the arrays themselves, and return their values."""
        self._held = list(arrays)
        return [first_of(array) for array in arrays]

    def make(self, value: int) -> np.ndarray:
        return array_of(value)

    def put(self, value: int) -> list[Any]:
        return [ray.put(array_of(value))]

    def tables(self) -> dict[str, int]:
        from soak_footprint import tables

        return tables()

    def pid(self) -> int:
        return os.getpid()


class Waves:
    """The kinds of operations of a wave on one cluster, with actors that live as long as the cluster."""

    def __init__(self, address: str, folder: Path, *, plain: bool) -> None:
        self._address, self._folder, self._plain = address, folder, plain
        self._numbers = iter(range(sys.maxsize))
        self.holders = [Holder.options(**beside(node)).remote() for node in range(NODES)]
        self.kinds: dict[str, Callable[[int], int]] = {
            "results": self.results,
            "nested": self.nested,
            "arguments and puts": self.arguments_and_puts,
            "borrowed": self.borrowed,
            "of actors": self.of_actors,
            "of a killed actor": self.of_a_killed_actor,
            "yielded": self.yielded,
            "waited for": self.waited_for,
            "reduced": self.reduced,
            "of failed tasks": self.of_failed_tasks,
            "of cancelled tasks": self.of_cancelled_tasks,
        }

    def results(self, count: int) -> int:
        """Results that are passed from task to task."""
        made = self._made(count // 2)
        elsewhere = [first.options(**there(i + 1)).remote(array) for i, array in enumerate(made)]
        assert _got(elsewhere) == _got(firsts.options(**there(2)).remote(made))
        pairs = [pair.options(**there(i)).remote(array) for i, array in enumerate(made[: count // 6])]
        for (one, several), array in zip(pairs, made, strict=False):
            value = first_of(_got(array))
            assert first_of(_got(one)) == value + 1
            assert [first_of(deep) for deep in _got(several)["deep"]] == [value + 2, value + 3]
        return len(made) + 3 * len(pairs)

    def nested(self, count: int) -> int:
        """References in objects in objects. The outermost is released last."""
        made = self._made(count - 1)
        expected = _got([first.remote(array) for array in made])
        outer = ray.put({"deep": [ray.put({"deeper": made}), array_of(7)]})
        del made
        inner, array = _got(outer)["deep"]
        assert first_of(array) == 7
        assert _got(firsts.remote(_got(inner)["deeper"])) == expected
        return count

    def arguments_and_puts(self, count: int) -> int:
        """Arrays that are passed directly, and arrays that are put."""
        values = [self._next() for _ in range(count // 2)]
        given = [first.options(**there(value)).remote(array_of(value)) for value in values]
        put = [ray.put(array_of(value)) for value in values]
        assert _got(given) == [first_of(array) for array in _got(put)] == values
        return 2 * len(values)

    def borrowed(self, count: int) -> int:
        """Objects borrowed by actors that keep references and arrays after all others have released them."""
        groups = [self._made(count // len(self.holders)) for _ in self.holders]
        half = len(groups[0]) // 2
        for holder, group in zip(self.holders, groups, strict=True):
            assert len(_got(holder.hold.remote(group[:half]))) == half
            assert len(_got(holder.keep.remote(*group[half:]))) == len(group) - half
        del groups, group
        _got([holder.hold.remote([]) for holder in self.holders])
        return count // len(self.holders) * len(self.holders)

    def of_actors(self, count: int) -> int:
        """Objects that actors return, and objects that they put and pass on."""
        values = [self._next() for _ in range(count // 2)]
        made = [self._holder(value).make.remote(value) for value in values]
        put = [reference for value in values for reference in _got(self._holder(value).put.remote(value))]
        assert _got([first.remote(array) for array in [*made, *put]]) == values * 2
        return 2 * len(values)

    def of_a_killed_actor(self, count: int) -> int:
        """Objects that a killed actor borrowed, returned and put. The last are lost with it."""
        doomed = Holder.options(**beside(self._next())).remote()
        third = max(count // 3, 1)
        _got(doomed.hold.remote(self._made(third)))
        put = [reference for _ in range(third) for reference in _got(doomed.put.remote(self._next()))]
        made = [doomed.make.remote(self._next()) for _ in range(third)]
        assert len(_got(put)) == len(_got(made)) == third
        ray.kill(doomed)
        assert len(_got([first.remote(array) for array in made])) == third
        return 3 * third

    def yielded(self, count: int) -> int:
        """Objects of a generator that is read to the end, and of one that is read half-way."""
        values = [self._next() for _ in range(count // 2)]
        assert [first_of(_got(array)) for array in stream.options(**there(1)).remote(values)] == values
        abandoned = stream.options(**there(2)).remote(values)
        for value, array in zip(values[: len(values) // 2], abandoned, strict=False):
            assert first_of(_got(array)) == value
        return 2 * len(values)

    def waited_for(self, count: int) -> int:
        """Objects of which the first half are waited for and the others are never read."""
        ready, late = ray.wait(self._made(count), num_returns=count // 2, timeout=TIMEOUT, fetch_local=False)
        assert len(ready) == count // 2
        assert len(_got(firsts.remote(ready))) == count // 2
        return len(ready) + len(late)

    def reduced(self, count: int) -> int:
        """Sums of all and of the first half, sums of sums, and a sum that fails."""
        made = 0
        while made < count:
            values = [2 * self._next() for _ in range(GROUP)]
            sources = [make.options(**there(value)).remote(value) for value in values]
            half, late = self._reduce(sources[: GROUP // 2], GROUP // 2)
            rest, late = self._reduce(sources[GROUP // 2 :], 2)
            assert len(late) == 1
            total, _ = self._reduce([half, rest, *late], 3)
            assert first_of(_got(total)) == sum(values)
            assert _got(first.remote(total)) == sum(values)
            unequal, _ = self._reduce([sources[0], make.remote(2 * self._next() + 1)], 2)
            _fails(unequal, ValueError, hoplite.Mismatch)
            made += GROUP + 4
        return made

    def of_failed_tasks(self, count: int) -> int:
        """Tasks that fail by an error, which others get too, and retried tasks whose worker has died."""
        array = ray.put(array_of(self._next()))
        failed = [fail.options(**there(i)).remote(array) for i in range(count // 2)]
        failed += [fail.remote(array_of(self._next())) for _ in range(count // 2)]
        failed += [first.remote(reference) for reference in failed]
        for reference in failed:
            _fails(reference, ValueError)
        crashed = self._folder / f"crashed-{self._next()}"
        assert first_of(_got(make_after_a_crash.remote(array, crashed))) == first_of(_got(array)) + 2
        return 1 + count // 2 + 2

    def of_cancelled_tasks(self, count: int) -> int:
        """Cancelled tasks, of which some run and some are queued."""
        gate = Gate.remote()
        made = self._made(count - GROUP)
        given = [array_of(self._next()) for _ in range(GROUP)]
        waiting = [wait_for.options(**there(i)).remote(gate, array, made) for i, array in enumerate(given)]
        _got(gate.reached.remote())
        for i, call in enumerate(waiting):
            ray.cancel(call, force=i == 0)
        for call in waiting:
            _fails(call, ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)
        return count

    def of_a_killed_driver(self, count: int) -> int:
        """Another driver makes and holds objects, and is killed."""
        command = [sys.executable, "-m", "soak_ray", "--owner", self._address, "--objects", str(count)]
        command += ["--plain"] if self._plain else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
            try:
                assert driver.stdout is not None
                made = int(driver.stdout.readline())
            finally:
                driver.kill()
        return made

    def _made(self, count: int) -> list[ray.ObjectRef]:
        return [make.options(**there(i)).remote(self._next()) for i in range(count)]

    def _next(self) -> int:
        # Small values, so that sums of several are exact in float32.
        return next(self._numbers) % (1 << 16)

    def _holder(self, number: int) -> Any:
        return self.holders[number % len(self.holders)]

    def _reduce(self, references: list[Any], count: int) -> tuple[ray.ObjectRef, list[Any]]:
        if not self._plain:
            import hoplite.ray as hoplite_ray

            return hoplite_ray.reduce(references, num_returns=count, timeout=TIMEOUT)
        ready, late = ray.wait(references, num_returns=count, timeout=TIMEOUT, fetch_local=False)
        return sum_of.remote(ready), late


def _got(reference: Any) -> Any:
    return ray.get(reference, timeout=TIMEOUT)


def _fails(reference: ray.ObjectRef, *errors: type[Exception]) -> None:
    try:
        _got(reference)
    except errors:
        return
    raise AssertionError(f"no error, where one of {errors} should be")
