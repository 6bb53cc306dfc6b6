"""Striped allreduce of large arrays: the bytes that it sends, and failures while it runs."""

from __future__ import annotations

from collections.abc import Sequence

import hoplite
import numpy as np
import pytest
from conftest import EVENTUALLY_SECONDS, ClusterOf, eventually
from faults import (
    MIB,
    TIMEOUT,
    SlowPut,
    bytes_of,
    has_folded,
    holders,
    names_owned_by,
    returns_to,
    sum_of,
    usage,
)

SIZE = 24 * MIB
"""So large that stripes are faster, whatever the cost model has measured."""
HALF = SIZE // 2

QUARTER_FOLDED = SIZE // 4
"""Bytes that every node has folded when half of each source is there: the stripes in the first half."""


def test_each_node_sends_the_least_and_nothing_stays_behind(cluster_of: ClusterOf) -> None:
    nodes = 4
    cluster = cluster_of(nodes)
    clients = [cluster.connect(node) for node in range(nodes)]
    before = [usage(client) for client in clients]
    names = [f"source {node}" for node in range(nodes)]
    for node, client in enumerate(clients):
        client.put(bytes_of(node, SIZE), names[node], timeout=TIMEOUT)

    def sent() -> list[int]:
        return [client.status(timeout=TIMEOUT).sent_bytes for client in clients]

    idle = sent()
    reduction = clients[0].allreduce(names, target="sum", timeout=TIMEOUT)
    for client in clients:
        np.testing.assert_array_equal(client.get("sum", timeout=TIMEOUT), sum_of(range(nodes), SIZE))
    assert {str(source) for source in reduction.result(TIMEOUT).sources} == {
        str(hoplite.ObjectId.of(name)) for name in names
    }
    # In a chain whose result streams back, each middle node would send twice the size.
    must = 2 * (nodes - 1) * SIZE // nodes
    moved = [now - then for now, then in zip(sent(), idle, strict=True)]
    assert max(moved) <= must + SIZE // 100, f"{moved}, must {must}"
    clients[0].delete([*names, "sum"], timeout=TIMEOUT)
    returns_to(before, clients)


def test_an_uneven_length_a_mean_and_two_sources_on_one_node(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    clients = [cluster.connect(node) for node in range(3)]
    length = SIZE // 8 + 3
    arrays = [np.random.default_rng(seed).integers(0, 1000, length).astype(np.float64) for seed in range(4)]
    for seed, array in enumerate(arrays):
        clients[seed % 3].put(array, f"source {seed}", timeout=TIMEOUT)
    names = [f"source {seed}" for seed in range(4)]
    clients[1].allreduce(names, target="mean", op="mean", timeout=TIMEOUT).result(TIMEOUT)
    for client in clients:
        np.testing.assert_array_equal(client.get("mean", timeout=TIMEOUT), sum(arrays) / 4)


class HalfWay:
    """An allreduce of sources on nodes 1 to 4, called on node 0. Half of each is written and summed."""

    def __init__(self, cluster: hoplite.LocalCluster, *, sources: int = 4, timeout: float = TIMEOUT) -> None:
        self.cluster = cluster
        self.clients = [cluster.connect(node) for node in range(len(cluster))]
        # The nodes that die own no directory entries.
        *self.names, self.target = names_owned_by(self.clients, 0, sources + 1)
        self.before = [usage(client) for client in self.clients]
        self.puts: dict[int, SlowPut] = {}
        for node in range(1, sources + 1):
            self.puts[node] = SlowPut(self.clients[node], self.names[node - 1], bytes_of(node, SIZE))
            self.puts[node].write(HALF)
        self.reduction = self.clients[0].allreduce(
            self.names, target=self.target, num_objects=4, timeout=timeout
        )
        for node in range(1, 5):
            has_folded(self.clients[node], QUARTER_FOLDED)

    def ends_right(self, seeds: Sequence[int], givers: Sequence[int]) -> None:
        named = {str(source) for source in self.reduction.result(TIMEOUT).sources}
        assert named == {self.names[seed - 1] for seed in seeds}
        expected = sum_of(seeds, SIZE)
        addresses = {self.cluster.addresses[node] for node in givers}
        eventually(lambda: holders(self.clients[0], self.target) >= addresses, "all who gave one have it")
        for node in {0, *givers}:
            np.testing.assert_array_equal(self.clients[node].get(self.target, timeout=TIMEOUT), expected)

    def leaves_only_sources(self) -> None:
        for put in self.puts.values():
            put.finish()
        self.clients[0].delete(self.names, timeout=TIMEOUT)
        returns_to(self.before, self.clients)


def test_a_spare_source_replaces_a_dead_one(cluster_of: ClusterOf) -> None:
    half = HalfWay(cluster_of(6), sources=5)
    half.cluster.kill(2)
    for node in (1, 3, 4, 5):
        half.puts[node].finish()
    half.ends_right([1, 3, 4, 5], [1, 3, 4, 5])


def test_a_lost_source_is_put_again_elsewhere(cluster_of: ClusterOf) -> None:
    half = HalfWay(cluster_of(6))
    half.cluster.kill(3)
    for node in (1, 2, 4):
        half.puts[node].finish()
    half.clients[5].put(bytes_of(3, SIZE), half.names[2], timeout=TIMEOUT)
    half.ends_right([1, 2, 3, 4], [1, 2, 4, 5])


def test_a_target_deleted_half_way_leaves_nothing(cluster_of: ClusterOf) -> None:
    half = HalfWay(cluster_of(5))
    half.clients[2].delete(half.target, timeout=TIMEOUT)
    with pytest.raises(hoplite.ObjectDeleted):
        half.reduction.result(TIMEOUT)
    half.leaves_only_sources()


def test_a_time_out_half_way_leaves_nothing_but_the_sources(cluster_of: ClusterOf) -> None:
    half = HalfWay(cluster_of(5), timeout=2.0)
    with pytest.raises(hoplite.TimedOut):
        half.reduction.result(TIMEOUT)
    half.leaves_only_sources()


def test_stores_without_room_for_stripes_get_a_chain() -> None:
    with hoplite.LocalCluster(4, store_size=2 * SIZE + 2 * MIB) as cluster:
        clients = [cluster.connect(node) for node in range(4)]
        names = [f"source {node}" for node in range(4)]
        for node, client in enumerate(clients):
            client.put(bytes_of(node, SIZE), names[node], timeout=TIMEOUT)
        clients[0].allreduce(names, target="sum", timeout=TIMEOUT).result(EVENTUALLY_SECONDS)
        for client in clients:
            np.testing.assert_array_equal(client.get("sum", timeout=TIMEOUT), sum_of(range(4), SIZE))
