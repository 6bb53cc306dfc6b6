"""20,000 objects through tasks, actors and reductions leave nothing behind; `make test-ray` runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ray_cluster import IGNORED, NODES, RayCluster, driver, goes_back_to, on

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")

pytestmark = [*IGNORED, pytest.mark.timeout(1800)]

OBJECTS = 20_000
LENGTH = 1 << 15
ROUND = 100
"""Objects made between two looks."""

GROWTH_MAX = 1.1
"""Memory at the end, to that when everything has been used a while."""


@pytest.fixture(scope="module", autouse=True)
def _driver(ray_cluster: RayCluster) -> Iterator[None]:
    with driver(ray_cluster, transparent=True, threshold=LENGTH):
        yield


@ray.remote
def make(value: int) -> np.ndarray:
    return np.full(LENGTH, value, np.float32)


@ray.remote
def double(array: np.ndarray) -> np.ndarray:
    return 2 * array


@ray.remote
class Maker:
    def make(self, value: int) -> np.ndarray:
        return np.full(LENGTH, value, np.float32)


def one_round(makers: list[ray.ObjectRef]) -> None:
    """Half by tasks, a quarter by actors, a quarter by tasks that are given those."""
    tasks = [make.remote(1) for _ in range(ROUND // 2)]
    actors = [makers[i % NODES].make.remote(1) for i in range(ROUND // 4)]
    doubled = [double.remote(reference) for reference in actors]
    total, _ = hoplite_ray.reduce([*tasks, *actors, *doubled])
    assert ray.get(total)[0] == ROUND // 2 + ROUND // 4 + 2 * (ROUND // 4)
    first, rest = hoplite_ray.reduce(tasks, num_returns=5)
    assert ray.get(first)[-1] == 5
    assert len(rest) == len(tasks) - 5


def memory() -> int:
    """Resident bytes of this process, the keepers and the Hoplite nodes, without what they share."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            status = (process / "status").read_text()
        except OSError:
            continue
        if process.name == str(os.getpid()) or b"hoplited" in command or b"Keeper" in command:
            found += sum(int(line.split()[1]) << 10 for line in status.splitlines() if "RssAnon" in line)
    return found


def test_many_objects_leave_nothing_and_memory_stays_flat() -> None:
    makers = [Maker.options(**on(i)).remote() for i in range(NODES)]
    rounds = OBJECTS // ROUND
    early = 0
    for number in range(rounds):
        one_round(makers)
        if number == rounds // 4:
            early = memory()
    goes_back_to(0)
    assert memory() < early * GROWTH_MAX
