"""Transfers over several connections: every byte arrives at its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hoplite
import numpy as np
import pytest
from faults import MIB, TIMEOUT, SlowPut, bytes_of, has_received

NODES = 4
CONNECTIONS = 3

CHUNK = 64 << 10
"""Bytes that one connection carries before the next one has its turn."""

SIZES = (70_001, CHUNK * CONNECTIONS, CHUNK * CONNECTIONS + 1, MIB - 1, 5 * MIB + 12_345)


@pytest.fixture
def bundled() -> Iterator[hoplite.LocalCluster]:
    arguments = ("--connections", str(CONNECTIONS))
    with hoplite.LocalCluster(NODES, store_size="192MiB", daemon_args=arguments) as cluster:
        yield cluster


def test_broadcasts_of_odd_sizes_arrive_unchanged(
    bundled: hoplite.LocalCluster, threads: ThreadPoolExecutor
) -> None:
    clients = [bundled.connect(node) for node in range(NODES)]
    for number, size in enumerate(SIZES):
        content = bytes_of(number, size)
        gets = [threads.submit(client.get, f"odd-{size}", timeout=TIMEOUT) for client in clients[1:]]
        clients[0].put(content, f"odd-{size}", timeout=TIMEOUT)
        for got in gets:
            assert np.array_equal(got.result(TIMEOUT), content)


@pytest.mark.parametrize("size", [100_003, 3 * MIB // 8 + 1])
def test_sums_are_right(bundled: hoplite.LocalCluster, size: int) -> None:
    clients = [bundled.connect(node) for node in range(NODES)]
    parts = [np.arange(size, dtype=np.float64) * (node + 1) for node in range(NODES)]
    sources = [f"part-{node}" for node in range(NODES)]
    for client, part, name in zip(clients, parts, sources, strict=True):
        client.put(part, name, timeout=TIMEOUT)
    clients[0].reduce(sources, target="sum", timeout=TIMEOUT).result(TIMEOUT)
    clients[1].allreduce(sources, target="sum everywhere", timeout=TIMEOUT).result(TIMEOUT)
    for client in clients:
        for name in ("sum", "sum everywhere"):
            assert np.array_equal(client.get(name, timeout=TIMEOUT), sum(parts))


def test_the_death_of_a_relay_costs_no_byte(
    bundled: hoplite.LocalCluster, threads: ThreadPoolExecutor
) -> None:
    clients = [bundled.connect(node) for node in range(NODES)]
    content = bytes_of(1, 16 * MIB + 77)
    put = SlowPut(clients[0], "cut", content)
    put.write(8 * MIB)
    gets = {}
    for node in range(1, NODES):
        gets[node] = threads.submit(clients[node].get, "cut", timeout=TIMEOUT)
        has_received(clients[node], 6 * MIB)
    bundled.kill(1)
    put.finish()
    for node in range(2, NODES):
        assert np.array_equal(gets[node].result(TIMEOUT), content)
    assert isinstance(gets[1].exception(TIMEOUT), hoplite.HopliteError)


def test_each_transfer_goes_by_as_many_connections(bundled: hoplite.LocalCluster) -> None:
    """The connections stay open for the next transfer. The tests above rely on several connections."""
    giver, taker = bundled.connect(0), bundled.connect(1)
    giver.put(bytes_of(2, 2 * MIB), "counted", timeout=TIMEOUT)
    taker.get("counted", timeout=TIMEOUT)
    port = int(bundled.addresses[1].rpartition(":")[2])
    # One more is for messages.
    assert connections_to(port, bundled.pids[0]) == 1 + CONNECTIONS


def test_all_streams_of_an_allreduce_share_them(bundled: hoplite.LocalCluster) -> None:
    clients = [bundled.connect(node) for node in range(NODES)]
    # So large that the allreduce is striped.
    parts = [bytes_of(node, 24 * MIB + 24) for node in range(NODES)]
    sources = [f"large-{node}" for node in range(NODES)]
    for client, part, name in zip(clients, parts, sources, strict=True):
        client.put(part, name, timeout=TIMEOUT)
    clients[0].allreduce(sources, target="large sum", timeout=TIMEOUT).result(TIMEOUT)
    for client in clients:
        assert np.array_equal(client.get("large sum", timeout=TIMEOUT), sum(parts))
    ports = [int(address.rpartition(":")[2]) for address in bundled.addresses]
    dialled = [[connections_to(port, pid) for port in ports] for pid in bundled.pids]
    # Each node sent only to its neighbour.
    assert [max(row) for row in dialled] == [1 + CONNECTIONS] * NODES
    assert sum(map(sum, dialled)) <= NODES * (NODES - 1 + CONNECTIONS)


def connections_to(port: int, pid: int | None) -> int:
    """The TCP connections of the process to this port of this machine."""
    assert pid is not None
    links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(f"socket:[{row[9]}]" in links and int(row[2].rpartition(":")[2], 16) == port for row in rows)
