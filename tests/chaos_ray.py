"""Injects failures into a Ray cluster while graphs of tasks and actors run, for some minutes.

``make chaos-ray`` runs it. Nodes die and new ones join. At drawn times single processes are killed:
workers, node actors, Hoplite nodes, the supervisor. Tasks may be retried as often as needed. So every value
must arrive in the end and be right. After that, nothing may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import hoplite.ray
import numpy as np
import numpy.typing as npt
import ray
from ray.cluster_utils import Cluster
from ray_cluster import SETTINGS, goes_back_to

BYTES = 2 << 20
"""Size of a value; it is above the threshold."""

NODES = 3
STORE_BYTES = 150_000_000
CPUS = 2

TASKS = (3, 12)
"""Least and most tasks of a graph."""

BREAKS = (0, 3)
"""Least and most failures while a graph runs and is read."""

SECONDS = 6.0
"""The failures of a graph happen within this time. Most graphs take less."""

PATIENCE = 180.0
"""Seconds for a graph. Losses are found within seconds, and lost values are rebuilt one after the other."""

QUICK_DEATHS = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 100,
    "health_check_failure_threshold": 20,
    "object_timeout_milliseconds": 200,
}

Array = npt.NDArray[np.uint8]

RETRIED = {"max_retries": -1, "num_cpus": 1}


def array_of(value: int) -> Array:
    return np.full(BYTES, value % 256, np.uint8)


@ray.remote(**RETRIED)
def source(value: int) -> Array:
    return array_of(value)


@ray.remote(**RETRIED)
def total(*arrays: Array) -> Array:
    return np.add.reduce(arrays, dtype=np.uint8)


@ray.remote(**RETRIED, num_returns=2)
def both(value: int) -> tuple[Array, Array]:
    return array_of(value), array_of(value + 1)


@ray.remote(**RETRIED)
def in_a_list(array: Array) -> list[Array]:
    return [array, array + np.uint8(1)]


@ray.remote(**RETRIED)
def last_of(arrays: list[Array]) -> Array:
    return arrays[-1]


@ray.remote(**RETRIED)
def checked(array: Array) -> int:
    """The value of the array, which all its elements must have."""
    assert array.nbytes == BYTES
    assert (array == array[0]).all()
    return int(array[0])


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Maker:
    def make(self, value: int) -> Array:
        return array_of(value)

    def more(self, array: Array) -> Array:
        return array + np.uint8(1)


@dataclass(frozen=True, slots=True)
class Made:
    reference: ray.ObjectRef
    value: int


class Graph:
    """Some tasks. Each takes results of earlier tasks."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._maker = Maker.remote()
        self.made: list[Made] = []

    def grow(self) -> None:
        """Add a task."""
        value = self._dice.randrange(256)
        kinds = [self._source, self._both, self._actors]
        if self.made:
            kinds += [self._total, self._total, self._listed, self._more]
        self._dice.choice(kinds)(value)

    def forget(self) -> None:
        """Drop references, so that the arguments of some results have no other references."""
        self.made = [made for made in self.made if self._dice.random() < 0.6] or self.made[-1:]

    def _add(self, reference: ray.ObjectRef, value: int) -> None:
        self.made.append(Made(reference, value % 256))

    def _source(self, value: int) -> None:
        self._add(source.remote(value), value)

    def _both(self, value: int) -> None:
        first, second = both.remote(value)
        self._add(first, value)
        self._add(second, value + 1)

    def _actors(self, value: int) -> None:
        self._add(self._maker.make.remote(value), value)

    def _total(self, _: int) -> None:
        parts = self._dice.choices(self.made, k=self._dice.randint(1, 3))
        self._add(total.remote(*(part.reference for part in parts)), sum(part.value for part in parts))

    def _listed(self, _: int) -> None:
        part = self._dice.choice(self.made)
        self._add(last_of.remote(in_a_list.remote(part.reference)), part.value + 1)

    def _more(self, _: int) -> None:
        part = self._dice.choice(self.made)
        self._add(self._maker.more.remote(part.reference), part.value + 1)


class Breaker:
    """Kills processes, except those that it is told to spare."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self._cluster = cluster
        self._dice = dice
        self._nodes = [self._add_node() for _ in range(NODES)]
        cluster.wait_for_nodes()
        self.did: Counter[str] = Counter()

    def break_something(self) -> None:
        what = self._dice.choice(["node", "node", "worker", "worker", "node actor", "hoplited", "supervisor"])
        if what == "node":
            self._lose_a_node()
        elif (process := self._process(what)) is not None:
            # The process may have ended by itself.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.did[what] += 1

    def _lose_a_node(self) -> None:
        node = self._dice.choice(self._nodes)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._add_node())

    def _add_node(self) -> Any:
        return self._cluster.add_node(num_cpus=CPUS, object_store_memory=STORE_BYTES)

    def _process(self, kind: str) -> int | None:
        found = sorted(process for process, name in descendants() if is_of(kind, name))
        return self._dice.choice(found) if found else None


def is_of(kind: str, name: str) -> bool:
    """Whether a process of this name is of a task or an actor, or one of Hoplite's."""
    ours = {"node actor": "ray::NodeActor", "supervisor": "ray::Supervisor"}
    if kind == "worker":
        # A Ray node ends if its agents end.
        others = (*ours.values(), "ray::DashboardAgent", "ray::RuntimeEnvAgent")
        return name.startswith("ray::") and not name.startswith(others)
    if kind == "hoplited":
        return "hoplited" in name.partition(" ")[0]
    return name.startswith(ours[kind])


def descendants() -> Iterator[tuple[int, str]]:
    """The ids and command lines of this process's descendants."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            yield process.pid, " ".join(process.cmdline())


def run_graph(dice: random.Random) -> int:
    """Run one graph. Tasks and this process check its values. Returns the number of values."""
    graph = Graph(dice)
    for _ in range(dice.randint(*TASKS)):
        graph.grow()
        time.sleep(dice.choice([0, 0, 0.3]))
    graph.forget()
    values = [checked.remote(made.reference) for made in graph.made]
    found = ray.get(values, timeout=PATIENCE)
    assert found == [made.value for made in graph.made]
    for made in dice.sample(graph.made, k=min(3, len(graph.made))):
        array = ray.get(made.reference, timeout=PATIENCE)
        assert array.nbytes == BYTES
        assert (array == made.value).all()
    return len(graph.made)


def run_and_break(breaker: Breaker, dice: random.Random) -> int:
    """Run one graph while failures happen."""
    moments = sorted(dice.uniform(0, SECONDS) for _ in range(dice.randint(*BREAKS)))
    began = time.monotonic()
    # The graph runs in the thread, because Ray adds nodes on the main thread.
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_graph, random.Random(dice.random()))
        for moment in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            breaker.break_something()
        return running.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    dice = random.Random(options.seed)
    os.environ.update(SETTINGS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster = Cluster()
    cluster.add_node(num_cpus=0, include_dashboard=False, _system_config=QUICK_DEATHS)
    breaker = Breaker(cluster, random.Random(dice.random()))
    hoplite.ray.init(address=cluster.address, log_to_driver=False)
    began, graphs, values = time.monotonic(), 0, 0
    print(f"seed {options.seed}", flush=True)
    while time.monotonic() < began + 60 * options.minutes:
        before = time.monotonic()
        try:
            values += run_and_break(breaker, dice)
        except Exception as error:
            print(f"graph {graphs} of seed {options.seed}, after {dict(breaker.did)}:", flush=True)
            sys.exit(f"{type(error).__name__}: {error}")
        graphs += 1
        seconds = time.monotonic() - before
        print(
            f"{graphs} graphs, {values} values, the last in {seconds:.1f} s; {dict(breaker.did)}", flush=True
        )
    goes_back_to(0)
    print("all values were right, and nothing is left")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
