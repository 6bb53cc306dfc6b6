"""`python -m examples.failures`: nodes die, one after the other, and a program goes on.

1. A relay dies in the middle of a broadcast; whoever was behind it goes on from the byte it had.
2. A node dies in the middle of a sum; any three of the four parts are enough.
3. A node dies with results that only it held; whoever needs them has them made again.
4. A node comes back, empty, and is a node like any other.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hoplite
import numpy as np
import numpy.typing as npt

NODES = 5
ELEMENTS = 2_000_000
PARTS = 9
TIMEOUT = 60.0
"""Seconds that nothing here comes near, unless something is broken."""

Array = npt.NDArray[np.float64]


def main() -> None:
    """Lose three nodes of five, and nothing else."""
    with hoplite.LocalCluster(NODES, store_size="512MiB") as cluster, ThreadPoolExecutor() as threads:
        clients = [cluster.connect(node) for node in range(NODES)]
        print(f"{NODES} nodes with a client each; each object has {ELEMENTS * 8 // 1_000_000} MB.")
        broadcast(cluster, clients, threads)
        reduction(cluster, clients)
        results(cluster, clients)
        comeback(cluster, clients)


def broadcast(
    cluster: hoplite.LocalCluster, clients: list[hoplite.Client], threads: ThreadPoolExecutor
) -> None:
    """Node 0 writes; node 2 streams behind it, 3 behind 2, and 4 behind 3. Then node 2 dies."""
    weights = task(0)
    creation = begin(clients[0], "weights", weights)
    gets = {}
    for node in (2, 3, 4):
        gets[node] = threads.submit(clients[node].get, "weights", timeout=TIMEOUT)
        has_received(clients[node], weights.nbytes // 3)
    cluster.kill(2)
    finish(creation, weights)
    for node in (3, 4):
        assert np.array_equal(gets[node].result(), weights)
    # Its own client is told at once.
    assert isinstance(gets[2].exception(), hoplite.NodeUnreachable)
    times = clients[3].status().received_bytes / weights.nbytes
    print(f"1. Node 2 died while node 3 streamed through it; node 3 fetched {times:.2f} times the bytes.")


def reduction(cluster: hoplite.LocalCluster, clients: list[hoplite.Client]) -> None:
    """The sum of the first three of four gradients. Node 3 dies when its own is half in."""
    gradients = {f"gradient {node}": task(node) for node in (0, 1, 3, 4)}
    reduction = clients[0].reduce(list(gradients), target="total", num_objects=3, timeout=TIMEOUT)
    begun = {}
    for node in (3, 1):
        name = f"gradient {node}"
        begun[node] = begin(clients[node], name, gradients[name])
    until(lambda: any(clients[node].status().folded_bytes > 0 for node in begun))
    cluster.kill(3)
    finish(begun[1], gradients["gradient 1"])
    for node in (0, 4):
        clients[node].put(gradients[f"gradient {node}"], f"gradient {node}", timeout=TIMEOUT)
    # The result says what went in, and is the sum of exactly that.
    sources = [str(source) for source in reduction.result().sources]
    total = clients[4].get("total", timeout=TIMEOUT)
    assert np.array_equal(total, sum(gradients[name] for name in sources))
    print(f"2. Node 3 died in the middle of a sum. It became that of {', '.join(sorted(sources))}.")


def results(cluster: hoplite.LocalCluster, clients: list[hoplite.Client]) -> None:
    """Tasks ran on nodes 1 and 4, and their results are there only. Node 4 dies."""
    tasks = Tasks([clients[1], clients[4]])
    ids = [tasks.submit(number) for number in range(PARTS)]
    clients[0].wait(ids, timeout=TIMEOUT)
    cluster.kill(4)
    for number, id in enumerate(ids):
        # Where the object is lost `run` is called with its id; the get waits on for the new put.
        result = clients[0].get(id, timeout=TIMEOUT, on_lost=tasks.run)
        assert np.array_equal(result, task(number))
    print(f"3. Node 4 died with results that only it held: {tasks.runs - PARTS} of {PARTS} were made again.")


def comeback(cluster: hoplite.LocalCluster, clients: list[hoplite.Client]) -> None:
    """Node 2 is started again. Its client connects anew, because what it had put is gone."""
    cluster.restart(2)
    clients[2].reconnect(timeout=TIMEOUT)
    assert np.array_equal(clients[2].get("weights", timeout=TIMEOUT), task(0))
    cluster.wait_members(3)
    print("4. Node 2 is back, and got the weights from who had them.")


def task(number: int) -> Array:
    """Some work: whenever and wherever it runs, the result is the same."""
    return np.random.default_rng(number).integers(0, 1000, ELEMENTS).astype(np.float64)


class Tasks:
    """What a task framework does: knows which task makes which object, and runs it where it can."""

    def __init__(self, workers: list[hoplite.Client]) -> None:
        self._workers = itertools.cycle(workers)
        self._numbers: dict[hoplite.ObjectId, int] = {}
        self.runs = 0

    def submit(self, number: int) -> hoplite.ObjectId:
        """Run a task; the id that its result has, or will have."""
        id = hoplite.ObjectId.from_name(f"result {number}")
        self._numbers[id] = number
        self.run(id)
        return id

    def run(self, id: hoplite.ObjectId) -> None:
        """Make this object, for the first time or again, on the next worker whose node lives."""
        self.runs += 1
        for worker in self._workers:
            try:
                worker.put(task(self._numbers[id]), id, timeout=TIMEOUT)
                return
            except hoplite.NodeUnreachable:
                continue


def begin(client: hoplite.Client, name: str, value: Array) -> hoplite.Creation:
    """Write the first half of an object: from here on others stream behind the writer."""
    creation = client.create(name, value.shape, value.dtype, timeout=TIMEOUT)
    half = value.size // 2
    creation.array[:half] = value[:half]
    creation.advance(value[:half].nbytes)
    return creation


def finish(creation: hoplite.Creation, value: Array) -> None:
    """Write the second half."""
    half = value.size // 2
    creation.array[half:] = value[half:]
    creation.seal(timeout=TIMEOUT)


def has_received(client: hoplite.Client, size: int) -> None:
    """Wait until that much has come to the client's node."""
    until(lambda: client.status().received_bytes >= size)


def until(holds: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("it never came so far")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
