"""Many objects, racing callers, and nodes that die and restart meanwhile."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hoplite
import numpy as np
import pytest
from conftest import ClusterOf, Threads, eventually
from faults import MIB, TIMEOUT

KIB = 1 << 10

TRIPS = 2000
"""Round trips before, during and after a fault. They take longer than the detection of a death."""

TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds(pid: int | None) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tombstones(client: hoplite.Client) -> int:
    gauges = client.status(timeout=TIMEOUT).gauges
    return next(gauge.value for gauge in gauges if gauge.name == "tombstones")


def test_living_objects_are_found_after_a_node_came_back(cluster_of: ClusterOf) -> None:
    count, size = 4000, 60 * KIB
    cluster = cluster_of(3)
    writer = cluster.connect(0)
    for number in range(count):
        writer.put(np.full(size, number % 251, np.uint8), f"many {number}", timeout=TIMEOUT)
    writer.delete("many 0", timeout=TIMEOUT)
    cluster.kill(1)
    cluster.restart(1)
    cluster.wait_members(3)
    reader = cluster.connect(2)
    for number in range(1, count):
        got = reader.get(f"many {number}", timeout=TIMEOUT)
        assert got.size == size
        assert got[0] == got[-1] == number % 251
        del got
    with pytest.raises(hoplite.ObjectDeleted):
        reader.get("many 0", timeout=TIMEOUT)

    def rests() -> bool:
        before = busy_seconds(cluster.pids[0])
        time.sleep(1)
        return busy_seconds(cluster.pids[0]) - before < 0.1

    eventually(rests, "the node with the objects comes to rest")


def reduce_two(
    client: hoplite.Client, names: list[str], target: str, start: threading.Barrier
) -> hoplite.HopliteError | None:
    """Reduce the first two sources when the other callers do so too. Returns the error, if any."""
    start.wait(TIMEOUT)
    try:
        client.reduce(names, target=target, num_objects=2, timeout=TIMEOUT).result(TIMEOUT)
    except hoplite.HopliteError as error:
        return error
    return None


@pytest.mark.parametrize(("size", "rounds"), [(64, 60), (4 * MIB, 10)])
def test_one_of_two_reductions_makes_the_target(
    cluster_of: ClusterOf, threads: Threads, size: int, rounds: int
) -> None:
    cluster = cluster_of(3)
    clients = [cluster.connect(node) for node in range(3)]
    sources = 4
    for number in range(rounds):
        names = [f"source {number} {k}" for k in range(sources)]
        target = f"target {number}"
        for k, name in enumerate(names):
            clients[k % 3].put(np.full(size // 4, 1 << k, np.int32), name, timeout=TIMEOUT)
        start = threading.Barrier(2)
        rivals = [threads.submit(reduce_two, clients[node], names, target, start) for node in (0, 1)]
        errors = [rival.result(TIMEOUT) for rival in rivals]
        assert errors.count(None) == 1, f"round {number}: {errors}"
        assert any(isinstance(error, hoplite.ObjectExists) for error in errors), f"round {number}: {errors}"
        contents = {client.get(target, timeout=TIMEOUT).tobytes() for client in clients}
        assert len(contents) == 1, f"round {number}: {len(contents)} contents"
        value = int(np.frombuffer(contents.pop(), np.int32)[0])
        assert value.bit_count() == 2, "of two sources"
        clients[0].delete([*names, target], timeout=TIMEOUT)


def test_nothing_is_reduced_onto_a_deleted_target(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    clients = [cluster.connect(node) for node in range(3)]
    for number in range(24):
        names = [f"part {number} {k}" for k in range(3)]
        for client, name in zip(clients, names, strict=True):
            client.put(np.ones(16, np.int32), name, timeout=TIMEOUT)
        target = f"gone {number}"
        clients[0].delete(target, timeout=TIMEOUT)
        paused = 1 + number % 2
        cluster.pause(paused)
        wake = threading.Timer(0.3, cluster.resume, [paused])
        wake.start()
        try:
            with pytest.raises(hoplite.ObjectDeleted):
                clients[0].reduce(names, target=target, num_objects=2, timeout=TIMEOUT).result(TIMEOUT)
        finally:
            wake.join()


def test_all_nodes_get_the_first_of_two_contents(cluster_of: ClusterOf, threads: Threads) -> None:
    cluster = cluster_of(3)
    clients = [cluster.connect(node) for node in range(3)]
    for number, size in enumerate([1 * KIB, 200 * KIB, 2 * MIB] * 8):
        start = threading.Barrier(2)

        def put(client: hoplite.Client, fill: int, name: str, size: int, start: threading.Barrier) -> None:
            start.wait(TIMEOUT)
            client.put(np.full(size, fill, np.uint8), name, timeout=TIMEOUT)

        name = f"twice {number}"
        for rival in [threads.submit(put, clients[k], k + 1, name, size, start) for k in (0, 1)]:
            rival.result(TIMEOUT)
        contents = {client.get(name, timeout=TIMEOUT).tobytes() for client in clients}
        assert len(contents) == 1, f"round {number}: {len(contents)} contents"
        assert contents.pop() in (bytes([1]) * size, bytes([2]) * size)


def test_a_deleted_id_is_a_few_bytes(cluster_of: ClusterOf) -> None:
    count = 50_000
    cluster = cluster_of(4)
    client = cluster.connect(0)
    payload = np.ones(256, np.uint8)
    for number in range(1000):
        client.put(payload, f"warm {number}", timeout=TIMEOUT)
        client.delete(f"warm {number}", timeout=TIMEOUT)
    before = sum(resident_bytes(pid) for pid in cluster.pids)
    for number in range(count):
        client.put(payload, f"short {number}", timeout=TIMEOUT)
        client.delete(f"short {number}", timeout=TIMEOUT)
    kept = sum(tombstones(cluster.connect(node)) for node in range(4))
    assert kept <= 3 * (count + 1000), "an owner, its backup, and who had the bytes"
    grown = sum(resident_bytes(pid) for pid in cluster.pids) - before
    # 64 bytes each, and the allocator's overhead.
    assert grown < 2 * 3 * 64 * count, f"{grown / count:.0f} bytes for each deleted id"


def test_a_death_among_many_objects_delays_few_calls(cluster_of: ClusterOf) -> None:
    nodes, each, slow = 5, 10_000, 0.25
    cluster = cluster_of(nodes)
    clients = [cluster.connect(node) for node in range(nodes)]
    payload = np.ones(64, np.uint8)
    with ThreadPoolExecutor(nodes) as threads:

        def fill(node: int) -> None:
            for number in range(each):
                clients[node].put(payload, f"{node} {number}", timeout=TIMEOUT)

        for filled in [threads.submit(fill, node) for node in range(nodes)]:
            filled.result()
    stop, took = threading.Event(), []

    def round_trips() -> None:
        content = np.ones(KIB, np.uint8)
        number = 0
        while not stop.is_set():
            began = time.monotonic()
            clients[0].put(content, f"ping {number}", timeout=TIMEOUT)
            clients[1].get(f"ping {number}", timeout=TIMEOUT)
            took.append(time.monotonic() - began)
            number += 1

    def many_more() -> None:
        target = len(took) + TRIPS
        eventually(lambda: len(took) >= target, f"{TRIPS} more round trips")

    with ThreadPoolExecutor(1) as threads:
        trips = threads.submit(round_trips)
        try:
            many_more()
            cluster.kill(4)
            many_more()
            cluster.restart(4)
            cluster.wait_members(nodes)
            many_more()
        finally:
            stop.set()
        trips.result(TIMEOUT)
    # Only calls whose owner died wait, once, until the death is detected.
    waited = sorted(took)[-5:]
    slow_ones = sum(seconds > slow for seconds in took)
    assert slow_ones <= 3, f"{slow_ones} of {len(took)} round trips took longer than {slow} s: {waited}"
