"""A node dies with its shards of the directory. Waiting calls finish under the next owner."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import ClusterOf, Threads, eventually
from faults import MIB, SIZE, TIMEOUT, SlowPut, bytes_of, has_received, holders, names_owned_by

OWNER = 1
"""The node that dies."""

INLINE, STREAMED = 1000, 4 * MIB
"""Sizes of an object that travels in its directory entry, and of one that does not."""

UNANSWERED = 0.1
"""Seconds in which each of these calls would end if the owner answered."""


class Directory:
    """Four nodes. Node 1 owns the entries of all `names`."""

    def __init__(self, cluster: hoplite.LocalCluster, threads: Threads) -> None:
        self.cluster = cluster
        self.threads = threads
        self.clients = [cluster.connect(node) for node in range(len(cluster))]
        self.names = names_owned_by(self.clients, OWNER, 3)
        self.name = self.names[0]
        self.others = [client for node, client in enumerate(self.clients) if node != OWNER]

    def knows(self, entries: int) -> None:
        """Wait until the owner has this number of entries."""
        eventually(
            lambda: self.clients[OWNER].status(timeout=TIMEOUT).entries >= entries, f"{entries} entries"
        )

    def die(self) -> None:
        self.cluster.kill(OWNER)


@pytest.fixture
def directory(threads: Threads, cluster_of: ClusterOf) -> Directory:
    return Directory(cluster_of(4), threads)


@pytest.mark.parametrize("size", [INLINE, STREAMED])
def test_waiting_gets_are_served_by_the_next_owner(directory: Directory, size: int) -> None:
    gets = [
        directory.threads.submit(client.get, directory.name, copy=copy, timeout=TIMEOUT)
        for client in directory.others
        for copy in (False, True)
    ]
    directory.knows(1)
    directory.die()
    directory.clients[3].put(bytes_of(0, size), directory.name, timeout=TIMEOUT)
    for get in gets:
        np.testing.assert_array_equal(get.result(), bytes_of(0, size))


@pytest.mark.parametrize("size", [INLINE, STREAMED])
def test_waits_and_reductions_go_on_watching(directory: Directory, size: int) -> None:
    watchers = [
        directory.threads.submit(client.wait, directory.names, timeout=TIMEOUT) for client in directory.others
    ]
    reduction = directory.clients[0].reduce(directory.names, target="sum", timeout=TIMEOUT)
    directory.clients[2].put(bytes_of(0, size), directory.names[0], timeout=TIMEOUT)
    directory.knows(3)
    directory.die()
    for number in (1, 2):
        directory.clients[3].put(bytes_of(number, size), directory.names[number], timeout=TIMEOUT)
    for watcher in watchers:
        assert [str(id) for id in watcher.result()[0]] == directory.names
    assert {str(id) for id in reduction.result().sources} == set(directory.names)
    expected = bytes_of(0, size) + bytes_of(1, size) + bytes_of(2, size)
    np.testing.assert_array_equal(directory.clients[3].get("sum", timeout=TIMEOUT), expected)


def test_a_get_after_the_owners_death_joins_a_running_transfer(directory: Directory) -> None:
    put = SlowPut(directory.clients[0], directory.name, bytes_of(0))
    put.write(SIZE // 2)
    gets = [directory.threads.submit(directory.clients[2].get, directory.name, timeout=TIMEOUT)]
    has_received(directory.clients[2], SIZE // 2 - MIB)
    directory.die()
    gets.append(directory.threads.submit(directory.clients[3].get, directory.name, timeout=TIMEOUT))
    has_received(directory.clients[3], SIZE // 2 - MIB)
    put.finish()
    for get in gets:
        np.testing.assert_array_equal(get.result(), bytes_of(0))


def put_both(client: hoplite.Client, names: list[str]) -> None:
    for name in names:
        client.put(bytes_of(0, STREAMED), name, timeout=TIMEOUT)


# The first name has been put and got, the second only put, the third neither.
CALLS: dict[str, Callable[[hoplite.Client, list[str]], Any]] = {
    "put": lambda client, names: client.put(bytes_of(0, STREAMED), names[2], timeout=TIMEOUT),
    "small put": lambda client, names: client.put(bytes_of(0, INLINE), names[2], timeout=TIMEOUT),
    "get": lambda client, names: client.get(names[1], timeout=TIMEOUT),
    "wait": lambda client, names: client.wait(names[:2], timeout=TIMEOUT),
    "locations": lambda client, names: client.locations(names[1], timeout=TIMEOUT),
    "delete": lambda client, names: client.delete(names[:2], timeout=TIMEOUT),
    "reduce": lambda client, names: client.reduce(names[:2], timeout=TIMEOUT).result(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_finish_after_a_paused_owner_dies(
    directory: Directory, call: Callable[[hoplite.Client, list[str]], Any]
) -> None:
    put_both(directory.clients[0], directory.names[:2])
    directory.clients[2].get(directory.names[0], timeout=TIMEOUT)
    directory.cluster.pause(OWNER)
    paused = time.monotonic()

    def timed(client: hoplite.Client) -> tuple[Any, float]:
        return call(client, directory.names), time.monotonic() - paused

    under_way = [directory.threads.submit(timed, client) for client in directory.others[1:]]
    wait(under_way, timeout=UNANSWERED)
    directory.die()
    # The calls' own threads measure the time. This one may stand still, and then the owner counts as dead.
    results, seconds = zip(*(each.result() for each in under_way), strict=True)
    assert min(seconds) > UNANSWERED
    if call is CALLS["delete"]:
        for client in directory.others:
            for name in directory.names[:2]:
                with pytest.raises(hoplite.ObjectDeleted):
                    client.get(name, timeout=TIMEOUT)
        eventually(lambda: not any(c.status(timeout=TIMEOUT).copies for c in directory.others), "all is gone")
    elif call is CALLS["wait"]:
        assert all([str(id) for id in ready] == directory.names[:2] for ready, _ in results)


def test_objects_on_living_nodes_stay_gettable(directory: Directory) -> None:
    sizes = {name: size for name in directory.names for size in (INLINE, STREAMED)}
    # Other nodes own the entries of some names.
    sizes |= {f"any {number}": (INLINE, STREAMED)[number % 2] for number in range(12)}
    for name, size in sizes.items():
        directory.clients[0].put(bytes_of(size, size), name, timeout=TIMEOUT)
    directory.die()
    for client in directory.others:
        for name, size in sizes.items():
            np.testing.assert_array_equal(client.get(name, timeout=TIMEOUT), bytes_of(size, size))


@pytest.mark.parametrize("size", [INLINE, STREAMED])
def test_a_tombstone_survives_its_owner(directory: Directory, size: int) -> None:
    directory.clients[0].put(bytes_of(0, size), directory.name, timeout=TIMEOUT)
    directory.clients[2].get(directory.name, timeout=TIMEOUT)
    directory.clients[3].delete(directory.name, timeout=TIMEOUT)
    directory.die()

    def is_deleted(clients: list[hoplite.Client]) -> None:
        for client in clients:
            with pytest.raises(hoplite.ObjectDeleted):
                client.get(directory.name, timeout=TIMEOUT)
            with pytest.raises(hoplite.ObjectDeleted):
                client.put(bytes_of(0, size), directory.name, timeout=TIMEOUT)
            with pytest.raises(hoplite.ObjectDeleted):
                client.locations(directory.name, timeout=TIMEOUT)

    is_deleted(directory.others)
    # The id stays deleted when its owner restarts without any knowledge of it.
    directory.cluster.restart(OWNER)
    directory.clients[OWNER].reconnect(timeout=TIMEOUT)
    is_deleted(directory.clients)
    directory.cluster.wait_members(4)
    is_deleted(directory.clients)


def test_the_next_owner_dies_too(directory: Directory) -> None:
    gets = {
        node: directory.threads.submit(directory.clients[node].get, directory.name, timeout=TIMEOUT)
        for node in (0, 2, 3)
    }
    directory.knows(1)

    def successor() -> list[int]:
        return [node for node in gets if directory.clients[node].status(timeout=TIMEOUT).entries]

    assert not successor()
    directory.die()
    eventually(successor, "another node has the entry")
    (second,) = successor()
    directory.cluster.kill(second)
    with pytest.raises(hoplite.NodeUnreachable):
        gets.pop(second).result()
    directory.clients[min(gets)].put(bytes_of(0, STREAMED), directory.name, timeout=TIMEOUT)
    for get in gets.values():
        np.testing.assert_array_equal(get.result(), bytes_of(0, STREAMED))


def test_a_restarted_node_owns_its_shards_again(directory: Directory) -> None:
    directory.die()
    directory.clients[0].put(bytes_of(0, STREAMED), directory.name, timeout=TIMEOUT)
    directory.cluster.restart(OWNER)
    directory.clients[OWNER].reconnect(timeout=TIMEOUT)
    directory.cluster.wait_members(4)
    eventually(
        lambda: holders(directory.clients[OWNER], directory.name) == {directory.cluster.addresses[0]},
        "the entry is where it belongs now",
    )
    # The owner has its shards again: some new names belong to it.
    (name,) = names_owned_by(directory.clients, OWNER)
    directory.clients[2].put(bytes_of(1, STREAMED), name, timeout=TIMEOUT)
    for client in directory.clients:
        np.testing.assert_array_equal(client.get(name, timeout=TIMEOUT), bytes_of(1, STREAMED))
        np.testing.assert_array_equal(client.get(directory.name, timeout=TIMEOUT), bytes_of(0, STREAMED))
