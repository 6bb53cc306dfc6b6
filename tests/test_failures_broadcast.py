"""Nodes die or pause during a broadcast. All others go on from the byte that they have."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import ClusterOf, Threads, eventually
from faults import GRAIN, MIB, TIMEOUT, Bytes, SlowPut, bytes_of, has_received, holders, names_owned_by

SIZE = 16 * MIB
HALF = SIZE // 2
NEARLY_HALF = HALF - 6 * GRAIN
"""Bytes that every node has when half is written. Each hop may hold back a grain."""

PAUSE_NOTICED = 2.0
"""Seconds after which others give up a paused process. docs/fault-tolerance.md promises this."""

BUSY = 8.0
"""Additional seconds for a busy machine."""


class Broadcast:
    """An object half written on node 0. Nodes 1, 2, ... form a chain behind it and have that half.

    The last node is not in the chain. It owns the directory entry unless another `owner` is given.
    """

    def __init__(self, cluster: hoplite.LocalCluster, threads: Threads, owner: int | None = None) -> None:
        self.cluster = cluster
        self.threads = threads
        self.clients = [cluster.connect(node) for node in range(len(cluster))]
        self.looker = len(cluster) - 1
        (self.name,) = names_owned_by(self.clients, self.looker if owner is None else owner)
        self.content = bytes_of(0, SIZE)
        self.put = SlowPut(self.clients[0], self.name, self.content)
        self.put.write(HALF)
        self.gets: dict[int, Future[Any]] = {}
        for node in range(1, self.looker):
            self.get(node)
            has_received(self.clients[node], NEARLY_HALF)
        sent = [client.status(timeout=TIMEOUT).sent_bytes for client in self.clients]
        # The tree is a chain: each node but the last sends the bytes once.
        assert all(NEARLY_HALF <= size <= HALF for size in sent[:-2])
        assert sent[-2:] == [0, 0]

    def get(self, node: int, client: hoplite.Client | None = None) -> None:
        """A get on this node, in the background."""
        client = client or self.clients[node]
        self.gets[node] = self.threads.submit(client.get, self.name, timeout=TIMEOUT)

    def kill(self, *nodes: int) -> None:
        """Kill nodes. Running gets of their clients must fail."""
        for node in nodes:
            self.cluster.kill(node)
            if node in self.gets:
                with pytest.raises(hoplite.NodeUnreachable):
                    self.gets.pop(node).result()

    def everyone_gets(self, content: Bytes) -> None:
        for get in self.gets.values():
            np.testing.assert_array_equal(get.result(), content)

    def is_complete_on(self, *nodes: int) -> None:
        """Wait until exactly these nodes have a complete copy, according to the directory."""
        wanted = {self.cluster.addresses[node] for node in nodes}
        eventually(lambda: holders(self.clients[self.looker], self.name) == wanted, f"complete on {nodes}")


@pytest.fixture
def broadcast(threads: Threads, cluster_of: ClusterOf) -> Callable[..., Broadcast]:
    return lambda nodes=6, **options: Broadcast(cluster_of(nodes), threads, **options)


@pytest.mark.parametrize("dead", [(1,), (2,), (4,), (2, 3), (1, 3)], ids=str)
def test_receivers_behind_a_dead_relay_fetch_no_byte_twice(
    broadcast: Callable[..., Broadcast], dead: tuple[int, ...]
) -> None:
    chain = broadcast()
    chain.kill(*dead)
    chain.put.finish()
    chain.everyone_gets(chain.content)
    for node in chain.gets:
        assert chain.clients[node].status(timeout=TIMEOUT).received_bytes == SIZE


def test_the_relay_with_the_directory_entry_dies(broadcast: Callable[..., Broadcast]) -> None:
    chain = broadcast(owner=2)
    chain.kill(2)
    chain.put.finish()
    chain.everyone_gets(chain.content)
    # A later get finds the object too.
    chain.get(chain.looker)
    chain.everyone_gets(chain.content)


def test_the_next_sender_dies_before_it_sends(broadcast: Callable[..., Broadcast]) -> None:
    chain = broadcast()
    # Node 3 was behind node 2. It is lent node 1, which never answers and dies as well.
    chain.cluster.pause(1)
    chain.kill(2)
    eventually(
        lambda: chain.cluster.addresses[2] not in chain.clients[3].status(timeout=TIMEOUT).members,
        "the first death is known",
    )
    chain.kill(1)
    chain.put.finish()
    chain.everyone_gets(chain.content)


@pytest.mark.parametrize("how", ["get", "put"])
def test_the_origin_may_die_once_another_copy_is_complete(
    broadcast: Callable[..., Broadcast], how: str
) -> None:
    chain = broadcast(4)
    # Node 2 pauses half-way. It must get the rest from another complete copy.
    chain.cluster.pause(2)
    if how == "get":
        chain.put.finish()
        chain.gets[1].result()
        chain.is_complete_on(0, 1)
        chain.kill(0)
    else:
        # The first writer has the claim, so the second put waits.
        second = chain.threads.submit(chain.clients[3].put, chain.content, chain.name, timeout=TIMEOUT)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        chain.kill(0)
        second.result()
        assert chain.cluster.addresses[3] in holders(chain.clients[chain.looker], chain.name)
    chain.cluster.resume(2)
    chain.everyone_gets(chain.content)


def test_a_withdrawn_object_is_put_elsewhere(
    broadcast: Callable[..., Broadcast],
) -> None:
    chain = broadcast()
    chain.kill(0)
    # It never was complete, so it is withdrawn and not lost. Running gets wait for the next put.
    eventually(
        lambda: all(client.status(timeout=TIMEOUT).copies == 0 for client in chain.clients[1:]),
        "the bytes of the dead writing are dropped",
    )
    assert [get.exception(0) for get in chain.gets.values() if get.done()] == []
    other = bytes_of(1, SIZE)
    chain.clients[chain.looker].put(other, chain.name, timeout=TIMEOUT)
    chain.everyone_gets(other)


@pytest.mark.parametrize("dead", [2, 4], ids=["relay", "last"])
def test_a_restarted_receiver_gets_again(broadcast: Callable[..., Broadcast], dead: int) -> None:
    chain = broadcast()
    chain.kill(dead)
    chain.cluster.restart(dead)
    chain.get(dead, chain.cluster.connect(dead))
    chain.put.finish()
    chain.everyone_gets(chain.content)


def test_a_paused_relay_is_bypassed_and_finishes_on_resume(
    broadcast: Callable[..., Broadcast],
) -> None:
    chain = broadcast()
    chain.cluster.pause(2)
    started = time.monotonic()
    chain.put.finish()
    paused = chain.gets.pop(2)
    chain.everyone_gets(chain.content)
    assert time.monotonic() - started < PAUSE_NOTICED + BUSY
    chain.cluster.resume(2)
    np.testing.assert_array_equal(paused.result(), chain.content)
    # It is a member again and sends to others.
    chain.cluster.wait_members(len(chain.cluster))
    chain.cluster.kill(0)
    chain.cluster.kill(1)
    chain.get(chain.looker)
    chain.everyone_gets(chain.content)
