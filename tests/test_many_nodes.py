"""Sixty-four daemons on one machine find each other and do collectives. A third of them dies at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import hoplite
import numpy as np
from conftest import eventually

NODES = 64
KILLED = range(1, NODES, 3)
ELEMENTS = 50_000


def test_a_third_of_many_nodes_dies_during_collectives() -> None:
    with hoplite.LocalCluster(NODES, store_size="16MiB") as cluster, ThreadPoolExecutor(NODES) as threads:
        clients = list(threads.map(cluster.connect, range(NODES)))
        assert all(len(client.status(timeout=60).members) == NODES for client in clients)

        def put(node: int, round: str) -> hoplite.ObjectId:
            return clients[node].put(np.full(ELEMENTS, node, np.float64), f"{round} {node}", timeout=60)

        def total(ids: list[hoplite.ObjectId], target: str) -> float:
            """Sum sources of all nodes, and get the sum on all nodes."""
            clients[0].reduce(ids, target=target, timeout=120).result()
            living = [client for node, client in enumerate(clients) if node in alive]
            sums = set(threads.map(lambda client: float(client.get(target, timeout=120)[-1]), living))
            assert len(sums) == 1
            return sums.pop()

        alive = set(range(NODES))
        assert total([put(node, "before") for node in alive], "all") == sum(range(NODES))

        # One source is put after the deaths, so the reduction must be repaired and ends on a survivor.
        survivors = alive - set(KILLED)
        late = sorted(survivors)[len(KILLED) :]
        early = [node for node in range(NODES) if node not in late]
        assert len(early) == len(survivors) - 1
        ids = [hoplite.ObjectId.from_name(f"amid {node}") for node in range(NODES)]
        reduction = clients[0].reduce(ids, target="some", num_objects=len(survivors), timeout=120)
        for node in early:
            put(node, "amid")
        for node in KILLED:
            cluster.kill(node)
        alive = survivors
        for node in late:
            put(node, "amid")
        result = reduction.result()
        assert len(result.sources) == len(survivors)
        chosen = {id.name for id in result.sources}
        expected = sum(node for node in range(NODES) if f"amid {node}" in chosen)
        assert clients[2].get("some", timeout=120)[0] == expected

        eventually(
            lambda: all(len(clients[node].status(timeout=60).members) == len(alive) for node in alive),
            "all who are left know who is left",
        )
        assert total([put(node, "after") for node in sorted(alive)], "those left") == sum(alive)
        for client in clients:
            client.close()
