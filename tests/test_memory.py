"""Deletes and evictions free space in the store, and puts never exceed it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hoplite
import numpy as np
import pytest
from conftest import MIB, TIMEOUT, Names, eventually, process
from hoplite import _hoplite
from hoplite.values import Header

STORE_MIB = 32


@pytest.fixture
def small() -> Iterator[hoplite.LocalCluster]:
    """Two nodes with small stores, of the test's own."""
    with hoplite.LocalCluster(2, store_size=f"{STORE_MIB}MiB") as cluster:
        yield cluster


def block(value: int, mib: int = 8) -> np.ndarray:
    return np.full(mib * MIB, value, np.uint8)


def used(client: hoplite.Client) -> int:
    return client.status().used_bytes


def test_deleted_ids_are_gone_everywhere(clients: list[hoplite.Client], name: Names) -> None:
    ids = [clients[0].put(np.ones(size), name(size)) for size in (10, 100_000)]
    for client in clients:
        for id in ids:
            client.get(id, timeout=TIMEOUT)
    clients[1].delete(ids)
    for client in clients:
        for id in ids:
            with pytest.raises(hoplite.ObjectDeleted, match=str(id)):
                client.get(id, timeout=TIMEOUT)
            with pytest.raises(hoplite.ObjectDeleted):
                client.put(np.ones(10), id, timeout=TIMEOUT)
    with pytest.raises(hoplite.ObjectDeleted):
        clients[0].locations(ids[0])


def test_a_delete_ends_a_waiting_get(clients: list[hoplite.Client], name: Names) -> None:
    id = hoplite.ObjectId.from_name(name())
    outcome: list[object] = []

    def get() -> None:
        try:
            outcome.append(clients[2].get(id, timeout=TIMEOUT))
        except hoplite.HopliteError as error:
            outcome.append(error)

    with clients[1].create(id, MIB, np.uint8) as creation:
        thread = threading.Thread(target=get)
        thread.start()
        eventually(lambda: len(clients[0].locations(id).copies) == 2, "the get has begun")
        clients[0].delete(id)
        thread.join()
        assert isinstance(outcome[0], hoplite.ObjectDeleted)
        with pytest.raises(hoplite.ObjectDeleted):
            creation.seal(timeout=TIMEOUT)


def test_an_unknown_id_may_be_deleted(client: hoplite.Client, name: Names) -> None:
    client.delete(name())
    client.delete([])


def test_other_sizes_under_a_taken_id_are_refused(clients: list[hoplite.Client], name: Names) -> None:
    for length in (10, 100_000):
        id = clients[0].put(np.zeros(length), name(length))
        for client in clients[:2]:
            with pytest.raises(hoplite.ObjectExists, match=str(id)):
                client.put(np.zeros(length + 1), id, timeout=TIMEOUT)
            client.put(np.zeros(length), id, timeout=TIMEOUT)


def test_fetched_copies_are_evicted(small: hoplite.LocalCluster) -> None:
    writer, reader = small.connect(0), small.connect(1)
    for i in range(12):
        id = writer.put(block(i), f"{i}", timeout=TIMEOUT)
        assert (reader.get(id, timeout=TIMEOUT) == i).all()
        writer.delete(id)
        writer.put(block(i, mib=1), f"kept {i}", timeout=TIMEOUT)
        reader.get(f"kept {i}", timeout=TIMEOUT)
    reader.put(block(1, mib=STORE_MIB - 10), "own", timeout=TIMEOUT)
    status = reader.status()
    assert status.evicted_copies > 0
    assert status.used_bytes <= status.store_bytes
    for i in range(12):
        assert (reader.get(f"kept {i}", timeout=TIMEOUT) == i).all()


def test_the_least_recently_used_copy_goes_first(small: hoplite.LocalCluster) -> None:
    writer, reader = small.connect(0), small.connect(1)
    for i in range(3):
        writer.put(block(i, mib=10), f"{i}", timeout=TIMEOUT)
        reader.get(f"{i}", timeout=TIMEOUT)
    reader.get("0", timeout=TIMEOUT)
    gc.collect()
    reader.put(block(9, mib=9), "new", timeout=TIMEOUT)

    def held() -> set[str]:
        return {i for i in "012" for copy in writer.locations(i).copies if copy.node == reader.node}

    eventually(lambda: held() == {"0", "2"}, "only 1, the least recently used, was evicted")


def test_an_object_larger_than_the_store_fails_at_once(small: hoplite.LocalCluster) -> None:
    client = small.connect(0)
    with pytest.raises(hoplite.StoreFull) as caught:
        client.put(block(0, mib=STORE_MIB + 1), "giant")
    assert "'giant'" in str(caught.value)
    assert str((STORE_MIB + 1) * MIB) in str(caught.value)
    client.put(block(0), "fits")


def test_a_put_touches_its_memory_piece_by_piece(small: hoplite.LocalCluster) -> None:
    """The kernel takes long to clear many pages, and neither a signal nor another thread could run then."""
    connection = _hoplite.Connection(small.sockets[0], TIMEOUT)
    before = resident_kib(os.getpid(), "RssShmem")
    parts = [block(1, 16)]
    writing = connection.put("object", Header(), parts, TIMEOUT).wait()
    assert resident_kib(os.getpid(), "RssShmem") < before + (8 << 10)
    writing.write(parts)
    assert resident_kib(os.getpid(), "RssShmem") >= before + (16 << 10)
    writing.seal(TIMEOUT).wait()


def test_a_full_store_waits_then_fails_clearly(small: hoplite.LocalCluster) -> None:
    client = small.connect(0)
    for i in range(3):
        client.put(block(i), f"{i}")
    with pytest.raises(hoplite.StoreFull, match="'late'"):
        client.put(block(9), "late", timeout=0.1)
    for i in range(3):
        assert (client.get(f"{i}") == i).all()


def test_a_waiting_put_goes_on_when_space_is_free(small: hoplite.LocalCluster) -> None:
    client = small.connect(0)
    for i in range(3):
        client.put(block(i), f"{i}")
    put = threading.Thread(target=lambda: client.put(block(9), "late", timeout=TIMEOUT))
    put.start()
    with pytest.raises(hoplite.TimedOut):
        client.get("late", timeout=0.2)
    client.delete("1")
    put.join()
    assert (client.get("late", timeout=TIMEOUT) == 9).all()


def test_views_keep_their_room_until_they_are_garbage(small: hoplite.LocalCluster) -> None:
    client = small.connect(0)
    for i in range(3):
        client.put(block(i), f"{i}")
    view = client.get("1")
    client.delete("1")
    with pytest.raises(hoplite.StoreFull):
        client.put(block(9), "late", timeout=0.1)
    assert (view == 1).all()
    del view
    gc.collect()
    client.put(block(9), "later", timeout=TIMEOUT)


CHILD = """
import sys, time, numpy as np, hoplite
client = hoplite.connect(sys.argv[1])
view = client.get("seen")
creation = client.create("unsealed", 4 << 20, np.uint8)
creation.advance(1 << 20)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_memory_of_a_dead_client_is_freed(small: hoplite.LocalCluster, signal_number: signal.Signals) -> None:
    client = small.connect(0)
    client.put(block(1), "seen")
    with process(sys.executable, "-c", CHILD, small.sockets[0]) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        client.delete("seen")
        assert used(client) >= 12 * MIB
        child.send_signal(signal_number)
        child.wait()
    eventually(lambda: used(client) == 0, "view and unsealed object are released")
    # The unsealed object's name is free.
    client.put(block(2), "unsealed", timeout=TIMEOUT)
    assert (small.connect(1).get("unsealed", timeout=TIMEOUT) == 2).all()


def resident_kib(pid: int, kind: str) -> int:
    """Resident memory of the process: "RssAnon" is its own, "RssShmem" is shared, as the arena is."""
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields[kind].split()[0])


OBJECTS = 10_000
BATCH = 100
WARM = 2_000
GROWTH_KIB_MAX = 24 << 10
"""A tombstone stays for ten minutes and takes some hundred bytes. A leak of the objects themselves, 4 to
100 KB each, would be a hundred times this."""


@pytest.mark.timeout(900)
def test_ten_thousand_objects_leave_nothing() -> None:
    with hoplite.LocalCluster(4, store_size=f"{STORE_MIB}MiB") as cluster:
        clients = [cluster.connect(i) for i in range(4)]
        pids = [pid for pid in cluster.pids if pid is not None]
        warm = [0] * 4
        for start in range(0, OBJECTS, BATCH):
            if start == WARM:
                warm = [resident_kib(pid, "RssAnon") for pid in pids]
            names = [f"{start + i}" for i in range(BATCH)]
            for i, name in enumerate(names):
                # Some objects are inline and others not. Both must free everything.
                clients[i % 4].put(np.full(4_000 if i % 10 else 100_000, i % 256, np.uint8), name)
            for client in clients:
                for i, name in enumerate(names):
                    assert client.get(name, timeout=TIMEOUT)[0] == i % 256
            clients[start // BATCH % 4].delete(names, timeout=TIMEOUT)

        def left() -> list[tuple[int, ...]]:
            statuses = [client.status() for client in clients]
            found = [(s.used_bytes, s.copies, s.entries, s.transfers, s.reductions) for s in statuses]
            return [numbers for numbers in found if any(numbers)]

        eventually(lambda: not left(), "every node's store is empty")
        grown = [resident_kib(pid, "RssAnon") - before for pid, before in zip(pids, warm, strict=True)]
        assert max(grown) < GROWTH_KIB_MAX, f"KiB grown by each daemon: {grown}"


def test_an_idle_cluster_uses_no_cpu(small: hoplite.LocalCluster) -> None:
    def cpu_seconds() -> float:
        ticks = 0
        for pid in small.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    small.connect(0).put(block(1), "x")
    small.connect(1).get("x", timeout=TIMEOUT)
    waiting = small.connect(1)
    thread = threading.Thread(target=lambda: waiting.wait(["never"], timeout=2.0))
    thread.start()
    before, start = cpu_seconds(), time.monotonic()
    thread.join()
    # Gossip and a waiting call go on. A busy loop would take whole seconds.
    assert cpu_seconds() - before < 0.1 * (time.monotonic() - start)


def test_a_wait_for_a_deleted_object_raises(clients: list[hoplite.Client], name: Names) -> None:
    here, never = name("here"), name("never")
    clients[0].put(b"here", here)
    clients[0].delete(here)
    # This holds whether or not the client's node owns the id.
    for client in clients:
        with pytest.raises(hoplite.ObjectDeleted, match="deleted"):
            client.wait([here, never], timeout=TIMEOUT)
