"""Gets before and after the put, streaming gets, views and copies."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hoplite
import numpy as np
import pytest
from conftest import MIB, TIMEOUT, Clients, Names, eventually


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_gets_may_come_first(clients: Clients, name: Names, rng: np.random.Generator, size: int) -> None:
    id = name()
    content = rng.integers(0, 256, size, np.uint8)
    with ThreadPoolExecutor(12) as threads:
        gets = [threads.submit(clients[i % 4].get, id, timeout=TIMEOUT, copy=i % 3 == 0) for i in range(12)]
        clients[0].put(content, id)
        for get in gets:
            np.testing.assert_array_equal(get.result(), content)


def test_a_get_streams_behind_a_running_put(clients: Clients, name: Names) -> None:
    size = 8 * MIB
    half = size // 2
    room = np.zeros(size, np.uint8)
    with ThreadPoolExecutor(1) as threads, clients[0].create(name(), size, np.uint8) as creation:
        get = threads.submit(clients[2].get, creation.id, out=room, timeout=TIMEOUT)
        creation.array[:half] = 7
        creation.advance(half)
        # The first half is there before the second is written.
        eventually(lambda: (room[: half - MIB] == 7).all(), "the first half arrives")
        assert not get.done()
        creation.array[half:] = 9
        creation.seal()
        assert (get.result()[half:] == 9).all()
        assert (room[:half] == 7).all()


def test_views_are_read_only_and_share_the_nodes_memory(clients: Clients, name: Names) -> None:
    id = clients[0].put(np.arange(1_000_000), name())
    a, b = clients[0].get(id), clients[0].get(id)
    assert not a.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        a.flags.writeable = True
    assert a.ctypes.data == b.ctypes.data
    assert a.ctypes.data % 64 == 0


def test_copies_are_private(client: hoplite.Client, name: Names) -> None:
    id = client.put(np.zeros(100_000), name())
    copied = client.get(id, copy=True)
    copied[:] = 1
    assert not client.get(id).any()


def test_views_outlive_delete_and_close(
    cluster: hoplite.LocalCluster, client: hoplite.Client, name: Names
) -> None:
    value = np.arange(500_000)
    id = client.put(value, name())
    with cluster.connect(1) as other:
        far = other.get(id, timeout=TIMEOUT)
        part = far[1000:2000]
        near = client.get(id)
        client.delete(id)
    filler = client.put(np.full(500_000, -1), name("filler"))
    np.testing.assert_array_equal(near, value)
    np.testing.assert_array_equal(far, value)
    del far
    gc.collect()
    np.testing.assert_array_equal(part, value[1000:2000])
    client.delete(filler)


@pytest.mark.parametrize(
    ("make", "error", "what"),
    [
        (lambda: np.empty(99, np.int64), hoplite.Mismatch, "800 bytes"),
        (lambda: np.empty(100, np.float64), hoplite.Mismatch, "float64"),
        (lambda: np.empty(200, np.int64)[::2], hoplite.BadArgument, "contiguous"),
        (lambda: bytes(800), hoplite.BadArgument, "writable"),
        (lambda: "text", hoplite.BadArgument, "str"),
    ],
    ids=["size", "dtype", "strided", "read-only", "no buffer"],
)
def test_out_must_fit(
    client: hoplite.Client, name: Names, make: Callable[[], object], error: type[Exception], what: str
) -> None:
    id = client.put(np.arange(100), name())
    with pytest.raises(error, match=what):
        client.get(id, out=make(), timeout=TIMEOUT)


@pytest.mark.parametrize("size", [100, 100_000])
def test_out_takes_arrays_of_any_shape_and_plain_buffers(clients: Clients, name: Names, size: int) -> None:
    value = np.arange(size)
    id = clients[0].put(value, name())
    shaped = np.empty((size // 10, 10), np.int64)
    assert clients[1].get(id, out=shaped, timeout=TIMEOUT) is shaped
    np.testing.assert_array_equal(shaped.ravel(), value)
    plain = bytearray(value.nbytes)
    clients[1].get(id, out=plain, timeout=TIMEOUT)
    assert plain == value.tobytes()


def test_wait_returns_the_first_ready(clients: Clients, name: Names) -> None:
    ids = [name(i) for i in range(4)]
    assert clients[0].wait(ids, 1, timeout=0.05)[0] == []
    clients[1].put(np.zeros(10), ids[2])
    clients[2].put(np.zeros(100_000), ids[1])
    ready, not_ready = clients[0].wait(ids, 2, timeout=TIMEOUT)
    assert list(map(str, ready)) == [ids[1], ids[2]]
    assert list(map(str, not_ready)) == [ids[0], ids[3]]
    assert list(map(str, clients[0].wait(ids, timeout=0.05)[0])) == [ids[1], ids[2]]


def test_a_wait_without_time_finds_ready_objects_elsewhere(clients: Clients, name: Names) -> None:
    ids = [name(i) for i in range(5)]
    for id, client in zip(ids, clients, strict=False):
        client.put(b"there", id, timeout=TIMEOUT)
    # On a busy machine the owner may answer later than such a wait ends.
    eventually(lambda: list(map(str, clients[0].wait(ids, timeout=0)[0])) == ids[:4], "all that is there")


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_prefetch_brings_objects_elsewhere(clients: Clients, name: Names, size: int) -> None:
    id = clients[0].put(np.ones(size, np.uint8), name())
    clients[0].prefetch(id, [clients[2].node, clients[3].node])
    clients[1].prefetch([id])

    def holders() -> set[str]:
        return {copy.node for copy in clients[0].locations(id).copies if copy.complete}

    eventually(lambda: holders() == {client.node for client in clients}, "all four nodes have it")
    with pytest.raises(hoplite.BadArgument, match=r"10\.9\.8\.7"):
        clients[0].prefetch(id, "10.9.8.7:1")


def test_locations_name_complete_and_partial_copies(clients: Clients, name: Names) -> None:
    id = name()
    assert clients[0].locations(id) == hoplite.Locations(None, ())
    with clients[1].create(id, MIB, np.uint8) as creation:
        eventually(lambda: clients[0].locations(id).size == MIB, "the creation is announced")
        (copy,) = clients[0].locations(id).copies
        assert (copy.node, copy.complete) == (clients[1].node, False)
        creation.array[:] = 0
    whole = (hoplite.Location(clients[1].node, complete=True, pinned=True),)
    eventually(lambda: clients[0].locations(id).copies == whole, "the copy is known to be complete")
    clients[2].get(id, timeout=TIMEOUT)
    eventually(lambda: len(clients[0].locations(id).copies) == 2, "the second copy is known")
    pinned = {copy.node: copy.pinned for copy in clients[0].locations(id).copies}
    assert pinned == {clients[1].node: True, clients[2].node: False}


def test_one_client_serves_many_threads(clients: Clients, name: Names) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                value = np.full(10_000 * (1 + i % 3), number * 100 + i)
                id = clients[0].put(value, name(f"{number} {i}"))
                np.testing.assert_array_equal(clients[1].get(id, timeout=TIMEOUT), value)
                clients[1].delete(id)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
