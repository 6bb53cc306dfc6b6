"""Small objects are cached by the client: a second get sends no request and gives the node's answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hoplite
import numpy as np
import pytest
from conftest import MIB, TIMEOUT, Clients, Names, eventually

SMALL_MAX = 64 << 10


@pytest.fixture
def roomless() -> Iterator[hoplite.LocalCluster]:
    """Two nodes with small stores, of the test's own."""
    with hoplite.LocalCluster(2, store_size="16MiB") as cluster:
        yield cluster


def test_a_second_get_sends_no_request(pair: hoplite.LocalCluster) -> None:
    client, far = pair.connect(0), pair.connect(1)
    shapes = [(0,), (1,), (125, 8), (SMALL_MAX,)]
    arrays = {str(shape): np.ones(shape, np.uint8).cumsum(dtype=np.uint8).reshape(shape) for shape in shapes}
    for name, array in arrays.items():
        client.put(array, name)
        far.get(name, timeout=TIMEOUT)
    object_id = client.put_object({"some": "object"})
    far.get_object(object_id, timeout=TIMEOUT)
    pair.pause(1)
    try:
        for name, array in arrays.items():
            again = far.get(name, timeout=TIMEOUT)
            np.testing.assert_array_equal(again, array)
            assert again.shape == array.shape
        assert far.get_object(object_id, timeout=0) == {"some": "object"}
        with pytest.raises(hoplite.BadArgument):
            far.get("(1,)", timeout=-1)
        with pytest.raises(hoplite.BadArgument):
            far.get("(1,)", on_lost="forget")  # type: ignore[arg-type]
    finally:
        pair.resume(1)


def test_arrays_are_read_only_and_aligned(client: hoplite.Client, name: Names) -> None:
    id = client.put(np.arange(100.0), name())
    for array in (client.get(id), client.get(id)):
        assert array.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("deleter", [0, 1, 2], ids=["the same client", "another client", "another node"])
def test_nothing_is_got_after_its_deletion(
    cluster: hoplite.LocalCluster, clients: Clients, name: Names, deleter: int
) -> None:
    with cluster.connect(1) as beside:
        deleters = [clients[1], beside, clients[3]]
        for number in range(50):
            id = clients[0].put(np.full(100, number), name(number))
            kept = clients[1].get(id, timeout=TIMEOUT)
            assert (clients[1].get(id, timeout=TIMEOUT) == number).all()
            deleters[deleter].delete(id)
            with pytest.raises(hoplite.ObjectDeleted):
                clients[1].get(id, timeout=TIMEOUT)
            assert (kept == number).all()


def test_threads_get_nothing_after_the_deletion(clients: Clients, name: Names) -> None:
    threads = 4
    with ThreadPoolExecutor(threads) as pool:
        for number in range(30):
            id = clients[0].put(np.full(100, number), name(number))
            deleted, begun = threading.Event(), threading.Barrier(threads + 1)

            def get_on(id: hoplite.ObjectId, deleted: threading.Event, begun: threading.Barrier) -> int:
                gets = 0
                while True:
                    was_deleted = deleted.is_set()
                    try:
                        first = clients[1].get(id, timeout=TIMEOUT)[0]
                    except hoplite.ObjectDeleted:
                        return gets
                    assert not was_deleted, f"{first} was got after its deletion"
                    gets += 1
                    if gets == 2:
                        begun.wait()

            running = [pool.submit(get_on, id, deleted, begun) for _ in range(threads)]
            begun.wait()
            clients[2].delete(id)
            deleted.set()
            assert all(got.result() >= 2 for got in running)


def test_the_asyncio_client_keeps_and_forgets_too(clients: Clients, name: Names) -> None:
    async def play() -> None:
        id = await clients[0].aio.put(np.arange(10), name())
        aio = clients[1].aio
        assert (await aio.get(id, timeout=TIMEOUT))[9] == 9
        late = name("late")
        waiting = asyncio.create_task(aio.get(late, timeout=TIMEOUT))
        await asyncio.sleep(0)
        clients[0].put(np.arange(20), late)
        # The answer is on its way or there. A get from the cache must not take it.
        while not waiting.done():
            assert (await aio.get(id, timeout=TIMEOUT))[9] == 9
            await asyncio.sleep(0)
        assert len(waiting.result()) == 20
        await clients[2].aio.delete(id)
        with pytest.raises(hoplite.ObjectDeleted):
            await aio.get(id, timeout=TIMEOUT)

    asyncio.run(play())


def test_small_objects_take_no_space_in_the_store(pair: hoplite.LocalCluster) -> None:
    near, far = pair.connect(0), pair.connect(1)
    ids = [near.put(np.full(1000, number), f"{number}") for number in range(100)]
    arrays = [far.get(id, timeout=TIMEOUT) for id in ids]
    assert far.status().used_bytes > 0
    near.delete(ids)
    eventually(lambda: far.status().used_bytes == 0, "nothing of them is left, though they are looked at")
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_an_evicted_object_is_fetched_again(roomless: hoplite.LocalCluster) -> None:
    writer, reader = roomless.connect(0), roomless.connect(1)
    ids = [writer.put(np.full(1000, number), f"{number}") for number in range(20)]

    def holders(id: hoplite.ObjectId) -> set[str]:
        return {copy.node for copy in writer.locations(id).copies if copy.complete}

    def get_all() -> None:
        for number, id in enumerate(ids):
            assert (reader.get(id, timeout=TIMEOUT) == number).all()

    get_all()
    assert all(reader.node in holders(id) for id in ids)
    fillers = []
    for size in (MIB, SMALL_MAX, 8000):
        with contextlib.suppress(hoplite.StoreFull, hoplite.TimedOut):
            while True:
                fillers.append(reader.put(np.zeros(size, np.uint8), timeout=0.1))
    eventually(lambda: not any(reader.node in holders(id) for id in ids), "all of them are evicted")
    reader.delete(fillers)
    get_all()
    assert all(reader.node in holders(id) for id in ids), "the node was asked, and has them again"
    writer.delete(ids)
    for id in ids:
        with pytest.raises(hoplite.ObjectDeleted):
            reader.get(id, timeout=TIMEOUT)


def test_a_dead_node_answers_nothing_and_a_new_one_has_nothing() -> None:
    # A single node, so that another content may be put after its death.
    with hoplite.LocalCluster(1, store_size="16MiB") as alone:
        client = alone.connect(0)
        client.put(np.zeros(10), "name")
        kept = client.get("name", timeout=TIMEOUT)
        asyncio.run(client.aio.get("name", timeout=TIMEOUT))
        alone.kill(0)
        with pytest.raises(hoplite.NodeUnreachable):
            client.get("name", timeout=TIMEOUT)
        alone.restart(0)
        with pytest.raises(hoplite.NodeUnreachable):
            client.get("name", timeout=TIMEOUT)
        client.reconnect(timeout=TIMEOUT)
        client.put(np.ones(10), "name", timeout=TIMEOUT)
        assert client.get("name", timeout=TIMEOUT).all()
        assert asyncio.run(client.aio.get("name", timeout=TIMEOUT)).all()
        assert not kept.any()


def test_a_closed_client_gives_nothing(cluster: hoplite.LocalCluster, name: Names) -> None:
    client = cluster.connect(0)
    id = client.put(np.arange(10), name())
    kept = client.get(id)
    client.close()
    gc.collect()
    with pytest.raises(hoplite.Aborted):
        client.get(id)
    assert kept[9] == 9
