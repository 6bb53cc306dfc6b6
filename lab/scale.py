"""Times operations of a real cluster on this machine. Each function takes the cluster and returns seconds."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import hoplite
import numpy as np

from lab.daemons import start
from lab.worker import START_AHEAD_SECONDS, Worker

#: Size and number of the objects that are timed one after the other.
TIMED_BYTES = 1 << 10
TIMED = 50

#: Size of the many small objects.
SMALL_BYTES = 100

#: How long round trips are measured before a death, and after it.
WATCH_SECONDS = 2.0

#: Least time between the starts of two round trips. Their objects stay until all are over, and without a
#: limit they could fill the store of a node.
TRIP_SECONDS = 0.001

#: Pairs of nodes that make round trips. Some of their objects must be in the dead node's part of the
#: directory.
PAIRS = 4

#: A round trip is not normal if it takes so many times the slowest one of the time before the death.
NORMAL = 2.0

#: Objects per call when all objects are deleted.
DELETED_AT_ONCE = 1_000

#: Size of the sources of a sum over many. It is large enough for a tree.
SOURCE_BYTES = 128 << 10

#: Time-out of all calls.
PATIENCE_SECONDS = 60.0
START_SECONDS = 120.0

#: Daemons fault in memory ahead for about so long after their start.
SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class Death:
    """Seconds from a node's death until round trips were normal again, and of the longest one in between."""

    normal: float
    worst: float
    usual: float


@dataclass
class Cluster:
    """A local cluster, with one client on each node."""

    nodes: hoplite.LocalCluster
    store: str
    clients: list[hoplite.Client] = field(default_factory=list)
    used: int = 0

    def name(self, kind: str) -> str:
        """A name that was never used before."""
        self.used += 1
        return f"{kind}-{self.used}"


@contextmanager
def cluster(nodes: int, store: str) -> Iterator[Cluster]:
    with hoplite.LocalCluster(nodes, store_size=store, start_timeout=START_SECONDS) as running:
        time.sleep(SETTLE_SECONDS)
        found = Cluster(running, store)
        found.clients = [running.connect(node, default_timeout=PATIENCE_SECONDS) for node in range(nodes)]
        yield found


def put(on: Cluster) -> float:
    return _median_of(on, "put", lambda name: on.clients[0].put(_array(TIMED_BYTES), name))


def get(on: Cluster) -> float:
    """Gets an object on another node than the one it was put on."""
    return _median_of(on, "get", lambda name: on.clients[1].get(name), prepared=True)


def delete(on: Cluster) -> float:
    return _median_of(on, "delete", lambda name: on.clients[0].delete(name), prepared=True)


def broadcast(on: Cluster, size: int) -> float:
    """The time until every other node has an object."""
    name = on.name("broadcast")
    on.clients[0].put(_array(size), name)
    with ThreadPoolExecutor(len(on.clients)) as pool:
        began = time.perf_counter()
        for _ in pool.map(lambda client: client.get(name), on.clients[1:]):
            pass
        took = time.perf_counter() - began
    on.clients[0].delete(name)
    return took


def reduce(on: Cluster, size: int) -> float:
    """The time until one node has the sum of one object of each node."""
    sources = [on.name("source") for _ in on.clients]
    for client, source in zip(on.clients, sources, strict=True):
        client.put(np.ones(size // 4, np.float32), source)
    target = on.name("sum")
    began = time.perf_counter()
    on.clients[0].reduce(sources, target=target, op="sum")
    result = on.clients[0].get(target)
    took = time.perf_counter() - began
    assert result[0] == len(sources)
    del result
    on.clients[0].delete([*sources, target])
    return took


def add_source(on: Cluster, sources: int) -> float:
    """The time per source of a sum over many sources, which other nodes put one after the other meanwhile."""
    names = [on.name("source") for _ in range(sources)]
    value = np.ones(SOURCE_BYTES // 4, np.float32)
    target = on.name("sum")
    caller, *others = on.clients
    caller.reduce(names, target=target, op="sum")
    began = time.perf_counter()
    for number, name in enumerate(names):
        others[number % len(others)].put(value, name)
    result = caller.get(target)
    took = time.perf_counter() - began
    assert result[0] == sources
    del result
    caller.delete([*names, target])
    return took / sources


def join(on: Cluster) -> float:
    """The time from the start of a node's process until it has served a get. Then the node leaves."""
    name = on.name("for a newcomer")
    on.clients[0].put(_array(TIMED_BYTES), name)
    seeds = on.nodes.addresses[:2]
    with TemporaryDirectory(prefix="hoplite-lab-") as folder:
        began = time.perf_counter()
        arguments = ["--listen", "127.0.0.1:0", "--store-size", on.store]
        daemon = start(arguments, Path(folder, "newcomer.sock"), seeds=seeds)
        try:
            with hoplite.connect(daemon.socket, default_timeout=PATIENCE_SECONDS) as client:
                client.get(name)
                took = time.perf_counter() - began
            on.nodes.wait_members(len(on.clients) + 1, timeout=PATIENCE_SECONDS)
        finally:
            daemon.stop()
    on.nodes.wait_members(len(on.clients), timeout=PATIENCE_SECONDS)
    on.clients[0].delete(name)
    return took


def death(on: Cluster) -> Death:
    """Kills the last node, measures, and starts the node again, empty."""
    victim = len(on.clients) - 1
    # Of two nodes only the survivor is left, so it makes both put and get.
    others = [on.clients[node % victim] for node in range(PAIRS + 1)]
    trips = [_Trips(pair, on.name("trip")) for pair in itertools.pairwise(others)]
    with ThreadPoolExecutor(PAIRS) as pool:
        running = [pool.submit(trip.run) for trip in trips]
        time.sleep(WATCH_SECONDS)
        died = time.perf_counter()
        pid = on.nodes.pids[victim]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(WATCH_SECONDS)
        for trip in trips:
            trip.over.set()
        for done in running:
            done.result()
    for trip in trips:
        trip.clear()
    on.clients[victim].close()
    on.nodes.restart(victim)
    on.nodes.wait_members(len(on.clients), timeout=PATIENCE_SECONDS)
    on.clients[victim] = on.nodes.connect(victim, default_timeout=PATIENCE_SECONDS)
    return judged([took for trip in trips for took in trip.took], died)


def judged(trips: Sequence[tuple[float, float]], died: float) -> Death:
    """The result, from the end time and the duration of each round trip."""
    before = [took for ended, took in trips if ended <= died]
    after = [(ended, took) for ended, took in trips if ended > died]
    slow = [ended for ended, took in after if took > NORMAL * max(before)]
    return Death(
        normal=max(slow, default=died) - died,
        worst=max(took for _, took in after),
        usual=statistics.median(before),
    )


class _Trips:
    """Round trips from one node to another, one after the other."""

    def __init__(self, pair: tuple[hoplite.Client, hoplite.Client], name: str) -> None:
        self._pair, self._name = pair, name
        self.over = threading.Event()
        self.took: list[tuple[float, float]] = []

    def run(self) -> None:
        near, far = self._pair
        array = _array(TIMED_BYTES)
        while not self.over.is_set():
            name = f"{self._name}-{len(self.took)}"
            began = time.perf_counter()
            near.put(array, name)
            far.get(name)
            ended = time.perf_counter()
            self.took.append((ended, ended - began))
            time.sleep(max(0.0, began + TRIP_SECONDS - ended))

    def clear(self) -> None:
        """Deletes the objects after all round trips, because so many deletions would delay other calls."""
        names = [f"{self._name}-{number}" for number in range(len(self.took))]
        for at in range(0, len(names), DELETED_AT_ONCE):
            self._pair[0].delete(names[at : at + DELETED_AT_ONCE])


def fill(on: Cluster, count: int) -> tuple[list[str], float]:
    """Puts ``count`` small objects in all, on all nodes at once. Returns their names and the rate."""
    share = count // len(on.clients)
    names = [[f"object-{node}-{number}" for number in range(share)] for node in range(len(on.clients))]
    workers = [Worker(socket) for socket in on.nodes.sockets]
    try:
        for worker in workers:
            worker.ask("fill", size=SMALL_BYTES, seed=0)
        at = time.monotonic() + START_AHEAD_SECONDS + share * len(workers) / 1e6
        for worker, own in zip(workers, names, strict=True):
            worker.send("put_many", at=at, ids=own)
        seconds = max([float(worker.receive(PATIENCE_SECONDS * 10)["ended"]) for worker in workers]) - at
    finally:
        for worker in workers:
            worker.close()
    return [name for own in names for name in own], share * len(workers) / seconds


def get_some(on: Cluster, names: Sequence[str]) -> float:
    """The median time of first gets on one node, of some of many objects, spread over all of them."""
    chosen = names[:: max(len(names) // TIMED, 1)][:TIMED]
    return _median(lambda name: on.clients[0].get(name), chosen)


def delete_some(on: Cluster, names: Sequence[str]) -> float:
    chosen = names[:: max(len(names) // TIMED, 1)][:TIMED]
    return _median(lambda name: on.clients[0].delete(name), chosen)


def clear(on: Cluster, names: Sequence[str]) -> float:
    """Deletes all objects, many per call. Returns the rate per second."""
    began = time.perf_counter()
    for at in range(0, len(names), DELETED_AT_ONCE):
        on.clients[0].delete(names[at : at + DELETED_AT_ONCE])
    return len(names) / (time.perf_counter() - began)


def _median_of(on: Cluster, kind: str, call: Callable[[str], object], prepared: bool = False) -> float:
    """The median time of a call. ``prepared``: the objects are put before."""
    names = [on.name(kind) for _ in range(TIMED)]
    if prepared:
        for name in names:
            on.clients[0].put(_array(TIMED_BYTES), name)
    took = _median(call, names)
    on.clients[0].delete(names)
    return took


def _median(call: Callable[[str], object], names: Sequence[str]) -> float:
    taken = []
    for name in names:
        began = time.perf_counter()
        call(name)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _array(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)
