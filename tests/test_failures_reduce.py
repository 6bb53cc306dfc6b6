"""Participants die at any point of a reduction. The result is exactly the sum of its named sources."""

from __future__ import annotations

from collections.abc import Callable

import hoplite
import numpy as np
import pytest
from conftest import ClusterOf, Threads, eventually
from faults import (
    GRAIN,
    MIB,
    TIMEOUT,
    SlowPut,
    Usage,
    bytes_of,
    has_folded,
    has_received,
    is_known,
    names_owned_by,
    returns_to,
    sum_of,
    usage,
)

SIZE = 8 * MIB
"""So large that the tree is a chain, whatever the cost model has measured."""
HALF = SIZE // 2
NEARLY_HALF = HALF - 6 * GRAIN
"""Bytes that every node has when half is written. Each hop may hold back a grain."""


class Sum:
    """A reduction by a chain, of which half is done. Node 2 adds its source to that of node 1, and so on.

    - The root is the last node but one. With `own_root` it is node 0, the coordinator, with its own source.
    - Gets of the target run on node 0 and on the last node (`looker`). They have half of it.
    - The reduction takes as many sources as the chain has. The last node can put the two spare ones.
    """

    def __init__(
        self,
        cluster: hoplite.LocalCluster,
        threads: Threads,
        *,
        own_root: bool = False,
        started: int | None = None,
    ) -> None:
        """`started`: only so many nodes of the chain have put their sources. The target has no byte yet."""
        self.cluster = cluster
        self.threads = threads
        self.clients = [cluster.connect(node) for node in range(len(cluster))]
        self.looker = len(cluster) - 1
        names = names_owned_by(self.clients, 0, len(cluster) + 2)
        self.target, self.sources = names[0], names[1:]
        self.chain = list(range(1, self.looker)) + ([0] if own_root else [])
        self.reduction = self.clients[0].reduce(
            self.sources, target=self.target, num_objects=len(self.chain), timeout=TIMEOUT
        )
        self.gets = {
            node: threads.submit(
                self.clients[node].get, self.target, copy=copy, timeout=TIMEOUT, on_lost="wait"
            )
            for node, copy in ((0, False), (self.looker, True))
        }
        self.puts: dict[int, SlowPut] = {}
        for node in self.chain[:started]:
            self.start(node)
            if node != self.chain[0]:
                has_folded(self.clients[node], 2 * NEARLY_HALF)
        if started is None:
            for getter in (0, self.looker):
                has_received(self.clients[getter], NEARLY_HALF)

    def start(self, node: int, *, source: int | None = None) -> None:
        """Put half of a source on this node: its own source, or the given one."""
        source = node if source is None else source
        self.puts[source] = SlowPut(self.clients[node], self.sources[source], bytes_of(source, SIZE))
        self.puts[source].write(HALF)
        is_known(self.clients[0], self.sources[source], 1)

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self.cluster.kill(node)
            self.puts.pop(node, None)

    def spare(self) -> None:
        """Put the two spare sources on the last node."""
        for source in (self.looker, self.looker + 1):
            self.clients[self.looker].put(bytes_of(source, SIZE), self.sources[source], timeout=TIMEOUT)

    def ends_right(self, *, without: tuple[int, ...] = (), dead: tuple[int, ...] = ()) -> None:
        """Check that the result is the sum of the sources that it names, and that all living nodes get it.

        The sources of the nodes `without` must not be in it. Those of the nodes `dead` may be.
        """
        for put in self.puts.values():
            put.finish()
        named = [str(source) for source in self.reduction.result(TIMEOUT).sources]
        assert len(named) == len(self.chain)
        assert not {self.sources[source] for source in without} & set(named)
        expected = sum_of((self.sources.index(name) for name in named), SIZE)
        for get in self.gets.values():
            np.testing.assert_array_equal(get.result(), expected)
        for node in set(range(len(self.cluster))) - {*without, *dead}:
            np.testing.assert_array_equal(self.clients[node].get(self.target, timeout=TIMEOUT), expected)


@pytest.fixture
def half_way(threads: Threads, cluster_of: ClusterOf) -> Callable[..., Sum]:
    return lambda nodes=6, **options: Sum(cluster_of(nodes), threads, **options)


# The first of the chain, one in its middle, the child of the root, the root, two neighbours, both ends.
@pytest.mark.parametrize("dead", [(1,), (2,), (3,), (4,), (2, 3), (1, 4)], ids=str)
def test_the_first_k_of_n_go_on_without_the_dead(half_way: Callable[..., Sum], dead: tuple[int, ...]) -> None:
    reduction = half_way()
    reduction.kill(*dead)
    reduction.spare()
    reduction.ends_right(without=dead)


@pytest.mark.parametrize("added_up", [NEARLY_HALF, SIZE], ids=["half", "whole"])
@pytest.mark.parametrize("dead", [1, 2, 3])
def test_a_death_while_more_sources_are_to_come(
    half_way: Callable[..., Sum], dead: int, added_up: int
) -> None:
    # Node 3 folds the present sources but publishes nothing, because another source may join it.
    reduction = half_way(started=3)
    if added_up == SIZE:
        for node in (1, 2, 3):
            reduction.puts.pop(node).finish()
    has_folded(reduction.clients[3], 2 * added_up)
    reduction.kill(dead)
    reduction.start(reduction.looker, source=5)
    reduction.start(4)
    reduction.ends_right(without=(dead,))


@pytest.mark.parametrize("nodes", [4, 9])
def test_short_and_long_chains(half_way: Callable[..., Sum], nodes: int) -> None:
    reduction = half_way(nodes)
    reduction.kill(nodes // 2)
    reduction.spare()
    reduction.ends_right(without=(nodes // 2,))


def test_three_deaths_each_after_a_repair(half_way: Callable[..., Sum]) -> None:
    reduction = half_way(8)
    looker = reduction.clients[reduction.looker]
    for dead, node, spare in ((5, 7, 7), (3, 7, 8), (1, 0, 0)):
        received = looker.status(timeout=TIMEOUT).received_bytes
        reduction.kill(dead)
        reduction.start(node, source=spare)
        # The sum is again as far as before the death.
        has_received(looker, received + NEARLY_HALF)
    reduction.ends_right(without=(1, 3, 5))


@pytest.mark.parametrize("dead", [1, 4])
def test_the_coordinator_may_be_the_root(half_way: Callable[..., Sum], dead: int) -> None:
    reduction = half_way(own_root=True)
    reduction.kill(dead)
    reduction.spare()
    reduction.ends_right(without=(dead,))


@pytest.mark.parametrize("dead", [1, 3, 4])
def test_a_source_put_again_takes_part_again(half_way: Callable[..., Sum], dead: int) -> None:
    reduction = half_way()
    reduction.kill(dead)
    reduction.start(reduction.looker, source=dead)
    reduction.ends_right(dead=(dead,))


def test_a_restarted_node_takes_part_again(half_way: Callable[..., Sum]) -> None:
    reduction = half_way()
    reduction.cluster.restart(2)
    reduction.clients[2].reconnect(timeout=TIMEOUT)
    reduction.start(2)
    reduction.ends_right()


@pytest.mark.parametrize("dead", [1, 2], ids=["source", "partial sum"])
def test_a_node_may_die_after_sending_everything(half_way: Callable[..., Sum], dead: int) -> None:
    reduction = half_way()
    # It can send everything only when the next node's own source is complete too.
    for node in range(1, dead + 2):
        reduction.puts.pop(node).finish()
    eventually(
        lambda: reduction.clients[dead].status(timeout=TIMEOUT).sent_bytes >= SIZE, "it has sent everything"
    )
    reduction.kill(dead)
    reduction.spare()
    reduction.ends_right(without=(dead,))


def test_a_second_death_during_the_repair(half_way: Callable[..., Sum]) -> None:
    reduction = half_way()
    # Node 3 must start over because node 2 dies. It is paused, so it never does, and then it dies too.
    reduction.cluster.pause(3)
    reduction.kill(2)
    reduction.start(reduction.looker, source=5)
    has_received(reduction.clients[reduction.looker], 2 * NEARLY_HALF)
    reduction.kill(3)
    reduction.start(reduction.looker, source=6)
    reduction.ends_right(without=(2, 3))


def test_the_replacement_of_a_dead_participant_dies(half_way: Callable[..., Sum]) -> None:
    reduction = half_way()
    del reduction.gets[reduction.looker]
    reduction.kill(2)
    reduction.start(reduction.looker, source=5)
    # It has the sum of node 1's source and its own.
    has_folded(reduction.clients[reduction.looker], 2 * NEARLY_HALF)
    reduction.cluster.kill(reduction.looker)
    del reduction.puts[5]
    reduction.start(0, source=0)
    reduction.ends_right(without=(2, reduction.looker))


def test_a_participant_dies_before_it_starts(half_way: Callable[..., Sum], threads: Threads) -> None:
    reduction = half_way()
    client = reduction.clients[0]
    # The source is complete on a node that no longer answers.
    reduction.clients[3].put(bytes_of(7, SIZE), "mute", timeout=TIMEOUT)
    client.wait(["mute"], timeout=TIMEOUT)
    reduction.cluster.pause(3)
    names = ["mute", "well", "spare"]
    second = client.reduce(names, target="second", num_objects=2, timeout=TIMEOUT)
    client.put(bytes_of(8, SIZE), "well", timeout=TIMEOUT)
    assert not second.done()
    reduction.kill(3)
    reduction.clients[4].put(bytes_of(9, SIZE), "spare", timeout=TIMEOUT)
    assert {str(source) for source in second.result(TIMEOUT).sources} == {"well", "spare"}
    np.testing.assert_array_equal(client.get("second", timeout=TIMEOUT), sum_of((8, 9), SIZE))
    reduction.spare()
    reduction.ends_right(without=(3,))


@pytest.mark.parametrize("dead", [2, 4], ids=["inner", "root"])
def test_a_further_reduction_behind_the_target(half_way: Callable[..., Sum], dead: int) -> None:
    reduction = half_way()
    client = reduction.clients[reduction.looker]
    client.put(bytes_of(7, SIZE), "own", timeout=TIMEOUT)
    further = client.reduce([reduction.target, "own"], target="further", timeout=TIMEOUT)
    has_folded(client, 2 * NEARLY_HALF)
    reduction.kill(dead)
    reduction.spare()
    reduction.ends_right(without=(dead,))
    further.result(TIMEOUT)
    expected = client.get(reduction.target, timeout=TIMEOUT) + bytes_of(7, SIZE)
    np.testing.assert_array_equal(reduction.clients[0].get("further", timeout=TIMEOUT), expected)


def test_a_paused_participant_releases_its_slot_on_resume(half_way: Callable[..., Sum]) -> None:
    reduction = half_way()
    reduction.cluster.pause(2)
    paused = reduction.puts.pop(2)
    reduction.spare()
    reduction.ends_right(without=(2,))
    reduction.cluster.resume(2)
    paused.finish()
    eventually(lambda: usage(reduction.clients[2]).reductions == 0, "it has no slot any more")
    eventually(lambda: usage(reduction.clients[2]).transfers == 0, "nothing is sent or received")
    assert usage(reduction.clients[2]).copies == 1
    np.testing.assert_array_equal(
        reduction.clients[2].get(reduction.sources[2], timeout=TIMEOUT), bytes_of(2, SIZE)
    )


def test_the_death_of_the_coordinator_frees_everything(half_way: Callable[..., Sum]) -> None:
    reduction = half_way()
    others = reduction.clients[1:]
    get = reduction.gets[reduction.looker]
    # Only each node's own source stays, which is still being written.
    source = Usage(usage(others[0]).used_bytes, copies=1, transfers=0, reductions=0)
    reduction.kill(0)
    returns_to([source] * 4 + [Usage(0, 0, 0, 0)], others)
    assert not get.done()
    # The get of the target still waits, and the sources are still usable.
    for put in reduction.puts.values():
        put.finish()
    names = [reduction.sources[node] for node in reduction.chain]
    reduction.clients[3].reduce(names, target="another target", timeout=TIMEOUT).result()
    expected = sum_of(reduction.chain, SIZE)
    np.testing.assert_array_equal(reduction.clients[1].get("another target", timeout=TIMEOUT), expected)
    reduction.clients[2].put(expected, reduction.target, timeout=TIMEOUT)
    np.testing.assert_array_equal(get.result(), expected)
