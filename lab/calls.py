"""A process that makes many calls on a Ray cluster of its own, with Hoplite or without, and times them.

``python -m lab.calls calls|arrays ray|hoplite SCALE [SIZE ...]`` is driven by lines of JSON. It lists its
kinds of calls, and makes batches of them. ``SCALE`` is a factor for the number of calls in a batch.
"""

from __future__ import annotations

import os
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

from lab.processes import families, processor_time
from lab.worker import serve

#: Tasks that run at once. With more, Ray would start and stop workers all the time.
CPUS = 2

#: Kinds of nodes, each with a resource of that name.
KINDS = ("first", "second")

#: Clients in "n:n", and actors that each of them calls. Ray's benchmark has as many on four cores.
CLIENTS = 2

STORE_BYTES = 512 << 20

#: Arrays of each size in a batch.
ARRAYS = 5

#: Share of a batch's calls that is made before it and not counted, because the processes have been idle.
WARM_UP = 0.1


class Actor:
    def value(self, *_: object) -> bytes:
        return b"ok"


class AsyncActor:
    async def value(self, *_: object) -> bytes:
        return b"ok"


class Client:
    """Makes calls from a process that is not a driver."""

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
    """An actor class that needs no processor, so that it does not wait for tasks."""
    return ray.remote(num_cpus=0)(actor)


@dataclass(frozen=True)
class Kind:
    """A kind of call of Ray's benchmark. ``run`` makes some; ``count`` take about 0.3 s on two cores."""

    name: str
    count: int
    run: Callable[[int], object]


def kinds() -> list[Kind]:
    """The kinds of calls. They need a cluster and share its actors."""
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
        Kind("tasks, sync", 200, lambda count: [ray.get(task.remote()) for _ in range(count)]),
        Kind("tasks, async", 600, lambda count: ray.get([task.remote() for _ in range(count)])),
        Kind(
            "tasks with arguments, async",
            450,
            lambda count: ray.get([task.remote(i, value, [i]) for i in range(count)]),
        ),
        Kind("tasks, n clients, async", 600, by_clients("call_tasks")),
        Kind("1:1 actor, sync", 450, lambda count: [ray.get(actor.value.remote()) for _ in range(count)]),
        Kind("1:1 actor, async", 2000, lambda count: ray.get([actor.value.remote() for _ in range(count)])),
        Kind(
            "1:1 actor, concurrent", 2000, lambda count: ray.get([many.value.remote() for _ in range(count)])
        ),
        Kind("1:n actors, async", 2000, lambda count: ray.get(clients[0].call_actors.remote(count))),
        Kind("n:n actors, async", 2000, by_clients("call_actors")),
        Kind("n:n actors with argument, async", 600, by_clients("call_actors_with_argument")),
        Kind(
            "1:1 async actor, sync",
            300,
            lambda count: [ray.get(async_actor.value.remote()) for _ in range(count)],
        ),
        Kind(
            "1:1 async actor, async",
            1000,
            lambda count: ray.get([async_actor.value.remote() for _ in range(count)]),
        ),
        Kind(
            "1:1 async actor with argument, async",
            800,
            lambda count: ray.get([async_actor.value.remote(i) for i in range(count)]),
        ),
        Kind("put of a small value", 700, lambda count: [ray.put(0) for _ in range(count)]),
        Kind("get of a small value", 4000, lambda count: [ray.get(value) for _ in range(count)]),
        Kind("get of 1000 references in one", 60, lambda count: [ray.get(nested) for _ in range(count)]),
        Kind("wait for tasks one by one", 600, wait_for_each),
    ]


def make(size: int) -> np.ndarray:
    return np.ones(size, np.uint8)


def last(array: np.ndarray) -> int:
    return int(array[-1])


def kinds_of_arrays(sizes: Sequence[int]) -> list[Kind]:
    """The kinds of calls with arrays. They need a cluster of two nodes."""
    first, second = (ray.remote(num_cpus=0, resources={kind: 1}) for kind in KINDS)
    maker, reader = first(make), second(last)

    def put_and_get(array: np.ndarray) -> Callable[[int], object]:
        return lambda count: [ray.get(ray.put(array)) for _ in range(count)]

    def task_to_task(size: int) -> Callable[[int], object]:
        return lambda count: [ray.get(reader.remote(maker.remote(size))) for _ in range(count)]

    return [
        Kind(f"{name} {size}", ARRAYS, run)
        for size in sizes
        for name, run in (
            ("put and get", put_and_get(np.ones(size, np.uint8))),
            ("task to task", task_to_task(size)),
        )
    ]


@contextmanager
def cluster(mode: str, nodes: int, threshold: int | None) -> Iterator[None]:
    """A number of Ray nodes on this machine, each of its own kind, with this process as their driver."""
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
        # This has no effect if Hoplite was not initialised.
        hoplite.ray.shutdown()
        ray.shutdown()
        running.shutdown()


class Driver:
    """The commands of this process."""

    def __init__(self, part: str, mode: str, scale: float, sizes: Sequence[int]) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(cluster(mode, 1 if part == "calls" else 2, min(sizes, default=None)))
        made = kinds() if part == "calls" else kinds_of_arrays(sizes)
        self._kinds = {kind.name: kind for kind in made}
        self._scale = scale
        # A first batch, in which workers start, functions are exported and memory is touched.
        for name in self._kinds:
            self.batch(name)

    def names(self) -> dict[str, Any]:
        return {"names": list(self._kinds)}

    def batch(self, name: str) -> dict[str, Any]:
        """The time of a call, and the processor time of all the cluster's processes for it."""
        kind = self._kinds[name]
        count = max(int(kind.count * self._scale), CLIENTS * CLIENTS)
        kind.run(max(int(count * WARM_UP), CLIENTS * CLIENTS))
        pids = families([os.getpid()])
        began, before = time.perf_counter(), [processor_time(pid) for pid in pids]
        kind.run(count)
        after, ended = [processor_time(pid) for pid in pids], time.perf_counter()
        # Processes that have ended in the meantime do not count, as Ray stops idle workers.
        spent = sum(max(now - then, 0.0) for now, then in zip(after, before, strict=True))
        return {"found": {"seconds": (ended - began) / count, "computing": spent / count}}

    def end(self) -> dict[str, Any]:
        """Stops the cluster, which takes Ray some seconds."""
        self._stack.close()
        return {}


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[4:]]
    serve(Driver(sys.argv[1], sys.argv[2], float(sys.argv[3]), sizes), sys.stdin, sys.stdout)
