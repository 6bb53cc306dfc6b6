"""Participants die in other kinds of reductions: small, in fixed order, allreduce, without spare sources."""

from __future__ import annotations

import hoplite
import numpy as np
import pytest
from conftest import ClusterOf, eventually
from faults import MIB, TIMEOUT, SlowPut, bytes_of, has_folded, holders, names_owned_by

SIZE = 8 * MIB
HALF = SIZE // 2


# Up to 64 KiB the coordinator folds the owners' answers. Above that, small sums use trees instead of chains.
@pytest.mark.parametrize("size", [1000, 100_000, 400_000])
@pytest.mark.parametrize("dead", [1, 3])
def test_small_sums_with_every_tree(cluster_of: ClusterOf, size: int, dead: int) -> None:
    cluster = cluster_of(6)
    clients = [cluster.connect(node) for node in range(6)]
    names = [f"source {number}" for number in range(8)]
    values = [bytes_of(number, size) for number in range(8)]
    reduction = clients[0].reduce(names, target="sum", num_objects=6, timeout=TIMEOUT)
    for node in range(1, 6):
        clients[node].put(values[node], names[node], timeout=TIMEOUT)
    cluster.kill(dead)
    for number in (6, 7):
        clients[2].put(values[number], names[number], timeout=TIMEOUT)
    named = [str(source) for source in reduction.result(TIMEOUT).sources]
    assert len(named) == 6
    expected = np.zeros(size, np.uint8)
    for name in named:
        expected += values[names.index(name)]
    for node in (0, 2, 4, 5):
        np.testing.assert_array_equal(clients[node].get("sum", timeout=TIMEOUT), expected)


def test_a_fixed_order_is_kept_to_the_last_bit(cluster_of: ClusterOf, rng: np.random.Generator) -> None:
    cluster = cluster_of(6)
    clients = [cluster.connect(node) for node in range(6)]
    names = names_owned_by(clients, 0, 4)
    values = [rng.standard_normal(SIZE // 4).astype(np.float32) for _ in names]
    reduction = clients[0].reduce(names, target="sum", order="fixed", timeout=TIMEOUT)
    puts = [
        SlowPut(clients[node], name, values[node - 1]) for node, name in zip((1, 2, 3, 4), names, strict=True)
    ]
    for put in puts:
        put.write(HALF)
    # Node 3 adds its source to the sum of the first two. Node 4 is behind it.
    has_folded(clients[4], HALF)
    cluster.kill(3)
    clients[5].put(values[2], names[2], timeout=TIMEOUT)
    for node in (1, 2, 4):
        puts[node - 1].finish()
    assert [str(source) for source in reduction.result(TIMEOUT).sources] == names
    expected = ((values[0] + values[1]) + values[2]) + values[3]
    for node in (0, 1, 5):
        np.testing.assert_array_equal(clients[node].get("sum", timeout=TIMEOUT), expected)


def test_a_result_is_lost_with_its_only_holder(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    clients = [cluster.connect(node) for node in range(4)]
    first, second, target = names_owned_by(clients, 0, 3)
    clients[2].put(bytes_of(0, SIZE), first, timeout=TIMEOUT)
    reduction = clients[0].reduce([first, second], target=target, timeout=TIMEOUT)
    clients[3].put(bytes_of(1, SIZE), second, timeout=TIMEOUT)
    reduction.result()
    (root,) = holders(clients[1], target)
    cluster.kill(cluster.addresses.index(root))
    with pytest.raises(hoplite.ObjectLost):
        clients[1].get(target, timeout=TIMEOUT)


def test_the_timeout_of_a_reduction_counts_the_missing_sources(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(3)
    clients = [cluster.connect(node) for node in range(3)]
    put = SlowPut(clients[1], "first", bytes_of(1, SIZE))
    put.write(HALF)
    reduction = clients[0].reduce(["first", "second"], target="sum", timeout=1.0)
    clients[2].put(bytes_of(2, SIZE), "second", timeout=TIMEOUT)
    cluster.kill(1)
    with pytest.raises(hoplite.TimedOut, match=r"1 of the 2 sources needed had come.*'first'"):
        reduction.result(TIMEOUT)


def test_an_allreduce_reaches_all_living_nodes(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(5)
    clients = [cluster.connect(node) for node in range(5)]
    *names, target = names_owned_by(clients, 0, 6)
    reduction = clients[0].allreduce(names, target=target, num_objects=4, timeout=TIMEOUT)
    puts = {}
    for node in range(1, 5):
        puts[node] = SlowPut(clients[node], names[node], bytes_of(node, SIZE))
        puts[node].write(HALF)
    has_folded(clients[4], HALF)
    cluster.kill(2)
    clients[0].put(bytes_of(0, SIZE), names[0], timeout=TIMEOUT)
    for node in (1, 3, 4):
        puts[node].finish()
    assert {str(source) for source in reduction.result(TIMEOUT).sources} == set(names) - {names[2]}
    expected = bytes_of(0, SIZE) + bytes_of(1, SIZE) + bytes_of(3, SIZE) + bytes_of(4, SIZE)
    givers = {cluster.addresses[node] for node in (0, 1, 3, 4)}
    eventually(lambda: holders(clients[0], target) == givers, "everyone who gave one has the sum")
    for node in (0, 1, 3, 4):
        np.testing.assert_array_equal(clients[node].get(target, timeout=TIMEOUT), expected)
