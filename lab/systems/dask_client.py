"""Dask's client in host 0: ``python -m lab.systems.dask_client SCHEDULER HOSTS``.

It is driven line by line, as `lab.worker` describes. Objects are made on the workers before the common start.
A time ends where the result first arrives: in the task that takes it, or in the client when a call returns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client, Worker, wait

from lab.systems import ROUND_TRIP
from lab.systems.peers import START_SECONDS, STOP_SECONDS, answers, tree
from lab.worker import CALL_SECONDS, checksum, pattern, serve, wait_until


def add(arrays: Sequence[np.ndarray]) -> np.ndarray:
    total: np.ndarray = arrays[0] + arrays[1]
    for array in arrays[2:]:
        total += array
    return total


def take(taken: object) -> float:
    """A task that takes one object or several, and returns the time at which it had them."""
    return time.monotonic()


def appear(array: np.ndarray, at: float) -> np.ndarray:
    """A task that returns its object at this time."""
    wait_until(at)
    return array


def echo(array: np.ndarray) -> np.ndarray:
    """A task that returns a new object made from its argument."""
    return array.copy()


def checksums(keys: Sequence[str], dask_worker: Worker) -> list[int]:
    """The checksums of objects on this worker. Raises KeyError if it does not hold one."""
    return [checksum(dask_worker.data[key]) for key in keys]


class Calls:
    """The commands of the client."""

    def __init__(self, scheduler: str, hosts: int) -> None:
        self._client = Client(scheduler, timeout=START_SECONDS)
        self._client.wait_for_workers(hosts, timeout=START_SECONDS)
        self._hosts = range(hosts)
        known = self._client.scheduler_info(n_workers=-1)["workers"]
        addresses = {worker["name"]: address for address, worker in known.items()}
        self._workers = [addresses[f"host{index}"] for index in self._hosts]
        self._sources: list[Any] = []
        self._results: list[Any] = []
        self._gathered: list[np.ndarray] = []
        self._holders = self._hosts[:0]

    def prepare(self, case: str, size: int, staggered: bool) -> dict[str, Any]:
        """Makes the objects. ``staggered`` changes nothing: objects of later tasks are made before, too."""
        only = {"broadcast": self._hosts[:1], ROUND_TRIP: self._hosts[:1], "gather": self._hosts[1:]}
        self._sources = [self._on(index, pattern, size, index) for index in only.get(case, self._hosts)]
        self._wait(self._sources)
        return {}

    def run(self, case: str, way: str, start: float, late: list[float] | None, trips: int) -> dict[str, Any]:
        """Runs a case. ``late``: seconds until each host arrives. None: all are there at the start."""
        wait_until(start)
        if case == ROUND_TRIP:
            return {"ended": self._round_trips(trips)}
        if case == "broadcast":
            self._results = self._sources
            self._holders = self._hosts[1:]
            if late is None:
                return {"ended": self._broadcast(self._sources[0], way)}
            return {"ended": self._take_staggered(self._sources[0], start, late)}
        if late is not None:
            pairs = enumerate(zip(self._sources, late, strict=True))
            self._sources = [
                self._on(index, appear, source, start + delay) for index, (source, delay) in pairs
            ]
        if case == "gather":
            return {"ended": self._gather(way)}
        add_up, _, send = way.partition(" ")
        total = self._tree() if add_up == "tree" else self._on(0, add, self._sources)
        self._results = [total]
        if case == "reduce":
            self._holders = self._hosts[:1]
            self._wait([total])
            return {"ended": time.monotonic()}
        self._holders = self._hosts
        return {"ended": self._broadcast(total, send)}

    def check(self) -> dict[str, Any]:
        if self._gathered:
            return {"checksums": [checksum(array) for array in self._gathered]}
        keys = [result.key for result in self._results]
        holders = [self._workers[index] for index in self._holders]
        found = self._client.run(checksums, keys, workers=holders)
        return {"checksums": [one for holder in holders for one in found[holder]]}

    def close(self) -> None:
        self._client.close(timeout=STOP_SECONDS)

    def clear(self) -> dict[str, Any]:
        """Releases all objects, so that the workers can free them."""
        self._sources, self._results, self._gathered = [], [], []
        self._holders = self._hosts[:0]
        return {}

    def _on(self, index: int, function: Any, *arguments: Any) -> Any:
        """Submits a task on one host. Returns its future."""
        worker = [self._workers[index]]
        return self._client.submit(
            function, *arguments, workers=worker, allow_other_workers=False, pure=False
        )

    def _broadcast(self, future: Any, way: str) -> float:
        if way.startswith("replicate"):
            fan_out = int(way.removeprefix("replicate-"))
            self._client.replicate([future], workers=self._workers, branching_factor=fan_out)
            return time.monotonic()
        return float(max(self._values([self._on(index, take, future) for index in self._holders])))

    def _take_staggered(self, future: Any, start: float, late: Sequence[float]) -> float:
        """Submits each receiver's task when the receiver arrives."""
        taken = []
        for index in self._holders:
            wait_until(start + late[index])
            taken.append(self._on(index, take, future))
        return float(max(self._values(taken)))

    def _round_trips(self, trips: int) -> float:
        ended = 0.0
        for _ in range(trips):
            answer = self._on(1, echo, self._sources[0])
            ended = float(self._values([self._on(0, take, answer)])[0])
            self._results = [answer]
        self._holders = self._hosts[:1]
        return ended

    def _gather(self, way: str) -> float:
        if way == "client":
            self._gathered = self._values(self._sources)
            return time.monotonic()
        self._results = self._sources
        self._holders = self._hosts[:1]
        return float(self._values([self._on(0, take, self._sources)])[0])

    def _tree(self) -> Any:
        """The future of the sum, which is made on host 0."""
        return tree(self._sources, lambda at, left, right: self._on(at, add, [left, right]))

    def _values(self, futures: Sequence[Any]) -> list[Any]:
        """The results of the futures, directly from the workers and not through the scheduler."""
        found: list[Any] = self._client.gather(futures, direct=True)
        return found

    @staticmethod
    def _wait(futures: Sequence[Any]) -> None:
        wait(futures, timeout=CALL_SECONDS)


def main(scheduler: str, hosts: str) -> None:
    with answers() as pipe:
        calls = Calls(scheduler, int(hosts))
        serve(calls, sys.stdin, pipe)
        calls.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
