"""A process that makes many calls on a Ray cluster of its own, with Hoplite or without, and times them.

``python -m lab.calls calls|arrays ray|hoplite SCALE [SIZE ...]`` is driven by lines of JSON, one for each
batch of all that it can do. ``SCALE`` is of the number of calls in a batch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import hoplite.ray
import numpy as np
import ray
from ray.cluster_utils import Cluster

from lab.worker import serve

#: So many tasks run at once. More would have Ray start workers and end them all the time.
CPUS = 2

#: Of nodes, by a resource of that name.
KINDS = ("first", "second")

#: Clients in "n:n", and actors that each of them calls: as Ray's benchmark has on four cores.
CLIENTS = 2

STORE_BYTES = 512 << 20

#: Arrays of each size in a batch, of which the median counts.
ARRAYS = 5


class Actor:
    def value(self, *_: object) -> bytes:
        return b"ok"


class AsyncActor:
    async def value(self, *_: object) -> bytes:
        return b"ok"


class Client:
    """Calls from a process that is no driver."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._servers = servers
        self._task = ray.remote(small)

    def call_tasks(self, count: int) -> None:
        ray.get([self._task.remote() for _ in range(count)])

    def call_actors(self, count: int) -> None:
        share = range(count // len(self._servers))
        ray.get([server.value.remote() for server in self._servers for _ in share])

    def call_actors_with_argument(self, count: int) -> None:
        value = ray.put(0)
        share = range(count // len(self._servers))
        ray.get([server.value.remote(value) for server in self._servers for _ in share])


def small(*_: object) -> bytes:
    return b"ok"


def references(count: int) -> list[ray.ObjectRef]:
    return [ray.put(1) for _ in range(count)]


def free(actor: type) -> Any:
    """An actor class that waits for no task's processor."""
    return ray.remote(num_cpus=0)(actor)


@dataclass(frozen=True)
class Kind:
    """Calls as of Ray's benchmark; ``run`` makes so many."""

    name: str
    count: int
    run: Callable[[int], object]


def kinds() -> list[Kind]:
    """With a cluster, whose actors they share."""
    actor, many = free(Actor).remote(), free(Actor).options(max_concurrency=16).remote()
    async_actor = free(AsyncActor).remote()
    servers = [free(Actor).remote() for _ in range(CLIENTS)]
    clients = [free(Client).remote(servers) for _ in range(CLIENTS)]
    task, value, nested = ray.remote(small), ray.put(0), ray.remote(references).remote(1000)
    ray.get([server.value.remote() for server in servers])

    def by_clients(method: str) -> Callable[[int], object]:
        return lambda count: ray.get([getattr(one, method).remote(count // CLIENTS) for one in clients])

    def wait_for_each(count: int) -> None:
        pending = [task.remote() for _ in range(count)]
        while pending:
            _, pending = ray.wait(pending)

    return [
        Kind("tasks, sync", 100, lambda count: [ray.get(task.remote()) for _ in range(count)]),
        Kind("tasks, async", 250, lambda count: ray.get([task.remote() for _ in range(count)])),
        Kind(
            "tasks with arguments, async",
            250,
            lambda count: ray.get([task.remote(i, value, [i]) for i in range(count)]),
        ),
        Kind("tasks, n clients, async", 250, by_clients("call_tasks")),
        Kind("1:1 actor, sync", 150, lambda count: [ray.get(actor.value.remote()) for _ in range(count)]),
        Kind("1:1 actor, async", 500, lambda count: ray.get([actor.value.remote() for _ in range(count)])),
        Kind(
            "1:1 actor, concurrent", 250, lambda count: ray.get([many.value.remote() for _ in range(count)])
        ),
        Kind("1:n actors, async", 500, lambda count: ray.get(clients[0].call_actors.remote(count))),
        Kind("n:n actors, async", 500, by_clients("call_actors")),
        Kind("n:n actors with argument, async", 500, by_clients("call_actors_with_argument")),
        Kind(
            "1:1 async actor, sync",
            250,
            lambda count: [ray.get(async_actor.value.remote()) for _ in range(count)],
        ),
        Kind(
            "1:1 async actor, async",
            250,
            lambda count: ray.get([async_actor.value.remote() for _ in range(count)]),
        ),
        Kind(
            "1:1 async actor with argument, async",
            250,
            lambda count: ray.get([async_actor.value.remote(i) for i in range(count)]),
        ),
        Kind("put of a small value", 250, lambda count: [ray.put(0) for _ in range(count)]),
        Kind("get of a small value", 500, lambda count: [ray.get(value) for _ in range(count)]),
        Kind("get of 1000 references in one", 20, lambda count: [ray.get(nested) for _ in range(count)]),
        Kind("wait for tasks one by one", 150, wait_for_each),
    ]


class Calls:
    """Of the kinds of Ray's benchmark."""

    def __init__(self, scale: float) -> None:
        self._kinds = [(kind, max(int(kind.count * scale), CLIENTS * CLIENTS)) for kind in kinds()]

    def batch(self) -> dict[str, float]:
        """A second, by kind."""
        return {kind.name: count / _seconds(kind.run, count) for kind, count in self._kinds}


def make(size: int) -> np.ndarray:
    return np.ones(size, np.uint8)


def last(array: np.ndarray) -> int:
    return int(array[-1])


class Arrays:
    """Of these sizes."""

    def __init__(self, scale: float, sizes: Sequence[int]) -> None:
        self._count = max(int(ARRAYS * scale), 1)
        self._arrays = [np.ones(size, np.uint8) for size in sizes]
        first, second = (ray.remote(num_cpus=0, resources={kind: 1}) for kind in KINDS)
        self._make, self._last = first(make), second(last)

    def batch(self) -> dict[str, float]:
        """Seconds, by what is done and size."""
        ways = {"put and get": self._put_and_get, "task to task": self._task_to_task}
        return {
            f"{name} {array.nbytes}": statistics.median(_seconds(run, array) for _ in range(self._count))
            for array in self._arrays
            for name, run in ways.items()
        }

    def _put_and_get(self, array: np.ndarray) -> None:
        ray.get(ray.put(array))

    def _task_to_task(self, array: np.ndarray) -> None:
        ray.get(self._last.remote(self._make.remote(array.nbytes)))


def _seconds(run: Callable[[Any], object], argument: Any) -> float:
    start = time.perf_counter()
    run(argument)
    return time.perf_counter() - start


@contextmanager
def cluster(mode: str, nodes: int, threshold: int | None) -> Iterator[None]:
    """So many Ray nodes on this machine, each of a kind of its own, and this process a driver of theirs."""
    running = Cluster()
    for kind in KINDS[:nodes]:
        head = {} if running.head_node else {"include_dashboard": False}
        running.add_node(num_cpus=CPUS, resources={kind: 9}, object_store_memory=STORE_BYTES, **head)
    try:
        if mode == "ray":
            ray.init(running.address, log_to_driver=False)
        else:
            hoplite.ray.init(
                running.address, log_to_driver=False, threshold=threshold, store_size=STORE_BYTES
            )
        yield
    finally:
        # It has no effect where it was not initialised.
        hoplite.ray.shutdown()
        ray.shutdown()
        running.shutdown()


class Driver:
    """What this process is told to do."""

    def __init__(self, part: str, mode: str, scale: float, sizes: Sequence[int]) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(cluster(mode, 1 if part == "calls" else 2, min(sizes, default=None)))
        self._batches = Calls(scale) if part == "calls" else Arrays(scale, sizes)
        # Workers start, functions are exported, memory is touched.
        self._batches.batch()

    def batch(self) -> dict[str, Any]:
        return {"found": self._batches.batch()}

    def end(self) -> dict[str, Any]:
        """The cluster's, which takes Ray some seconds."""
        self._stack.close()
        return {}


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[4:]]
    serve(Driver(sys.argv[1], sys.argv[2], float(sys.argv[3]), sizes), sys.stdin, sys.stdout)
