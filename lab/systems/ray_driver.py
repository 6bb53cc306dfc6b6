"""Ray's driver in host 0: ``python -m lab.systems.ray_driver HEAD ADDRESS HOSTS``.

It is driven line by line, as `lab.worker` describes. Objects are put and arrays made before the common start.
Results are kept until they are checked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from lab.systems import ROUND_TRIP
from lab.systems.peers import answers, tree
from lab.worker import CALL_SECONDS, checksum, pattern, serve, wait_until

#: The share of a host's resource that each task takes. It is small enough for all tasks at once.
SHARE = 0.001


class Part:
    """The actor of a host. It puts, gets and reports its results."""

    def __init__(self) -> None:
        self._got = self._filled = np.empty(0, np.float32)

    def fill(self, size: int, seed: int) -> None:
        self._filled = pattern(size, seed)

    def put(self) -> list[Any]:
        # In a list, so that the reference is passed on and not the object.
        return [ray.put(self._filled)]

    def appear(self, start: float) -> np.ndarray:
        wait_until(start)
        return self._filled

    def echo(self, array: np.ndarray) -> np.ndarray:
        return array

    def get(self, references: list[Any], start: float) -> float:
        wait_until(start)
        self._got = ray.get(references[0], timeout=CALL_SECONDS)
        return time.monotonic()

    def check(self) -> int:
        return checksum(self._got)

    def clear(self) -> None:
        self._got = self._filled = np.empty(0, np.float32)


def add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    total: np.ndarray = left + right
    return total


class Calls:
    """The commands of the driver. The driver itself does the part of its own host."""

    def __init__(self, head: str, address: str, hosts: int) -> None:
        ray.init(address=head, _node_ip_address=address, log_to_driver=False, logging_level="error")
        self._hosts = range(hosts)
        self._parts = [
            ray.remote(Part).options(num_cpus=0, resources={f"host{index}": SHARE}).remote()
            for index in self._hosts[1:]
        ]
        self._add = [
            ray.remote(add).options(num_cpus=1, resources={f"host{index}": SHARE}) for index in self._hosts
        ]
        self._filled = np.empty(0, np.float32)
        self._sources: list[Any] = []
        self._results: list[np.ndarray] = []
        self.clear()

    def prepare(self, case: str, size: int, staggered: bool) -> dict[str, Any]:
        self._filled = pattern(size, 0)
        if case == "broadcast":
            self._sources = [ray.put(self._filled)]
        elif case != ROUND_TRIP:
            self._get([part.fill.remote(size, index) for index, part in enumerate(self._parts, 1)])
            if not staggered:
                own = [ray.put(self._filled)] if case != "gather" else []
                self._sources = own + [
                    put for (put,) in self._get([part.put.remote() for part in self._parts])
                ]
        return {}

    def run(self, case: str, way: str, start: float, late: list[float] | None, trips: int) -> dict[str, Any]:
        """Runs a case. ``late``: seconds until each host arrives. None: all have put, and start at once."""
        instants = [start + delay for delay in late or [0.0] * len(self._hosts)]
        if case == "broadcast":
            return {"ended": self._get_by_all(self._sources[0], instants)}
        if late is not None:
            self._sources = [
                part.appear.remote(instant) for part, instant in zip(self._parts, instants[1:], strict=True)
            ]
        wait_until(start)
        if case == ROUND_TRIP:
            for _ in range(trips):
                self._results = [self._get(self._parts[0].echo.remote(self._filled))]
            return {"ended": time.monotonic()}
        if late is not None:
            self._sources.insert(0, ray.put(self._filled))
        if case == "gather":
            self._results = self._get(self._sources)
            return {"ended": time.monotonic()}
        total = self._tree() if way == "tree" else self._star()
        if case == "reduce":
            self._results = [self._get(total) if way == "tree" else total]
            return {"ended": time.monotonic()}
        reference = total if way == "tree" else ray.put(total)
        others = [part.get.remote([reference], start) for part in self._parts]
        self._results = [self._get(reference)]
        own = time.monotonic()
        self._at_parts = True
        return {"ended": max(own, *self._get(others))}

    def check(self) -> dict[str, Any]:
        own = [checksum(result) for result in self._results]
        others = self._get([part.check.remote() for part in self._parts]) if self._at_parts else []
        return {"checksums": [*own, *others]}

    def clear(self) -> dict[str, Any]:
        """Releases all objects, so that the object stores can free them."""
        self._sources, self._results = [], []
        self._at_parts = False
        self._get([part.clear.remote() for part in self._parts])
        return {}

    def _get_by_all(self, reference: Any, instants: Sequence[float]) -> float:
        """The time at which the last part has the object. Each asks for it at its host's time."""
        self._at_parts = True
        pairs = zip(self._parts, instants[1:], strict=True)
        return float(max(self._get([part.get.remote([reference], instant) for part, instant in pairs])))

    def _star(self) -> np.ndarray:
        """Adds the arrived objects here, while the others are under way."""
        waiting = list(self._sources)
        total: np.ndarray | None = None
        while waiting:
            (ready,), waiting = ray.wait(waiting, timeout=CALL_SECONDS)
            array = self._get(ready)
            total = array.copy() if total is None else np.add(total, array, out=total)
        assert total is not None
        return total

    def _tree(self) -> Any:
        """The reference of the sum, which is made on host 0."""
        return tree(self._sources, lambda at, left, right: self._add[at].remote(left, right))

    @staticmethod
    def _get(references: Any) -> Any:
        return ray.get(references, timeout=CALL_SECONDS)


def main(head: str, address: str, hosts: str) -> None:
    with answers() as pipe:
        calls = Calls(head, address, int(hosts))
        serve(calls, sys.stdin, pipe)
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
