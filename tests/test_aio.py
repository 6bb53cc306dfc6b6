"""The asyncio forms of the calls: the same results, cancellation, many calls at once, no threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import hoplite
import numpy as np
import pytest
from conftest import TIMEOUT, Clients, Names, eventually


async def get_until_gone(aio: hoplite.AsyncClient, id: hoplite.ObjectId) -> None:
    # A delete returns when it is recorded. Other nodes with the object drop it a moment later.
    while True:
        await aio.get(id, timeout=TIMEOUT)


@pytest.mark.parametrize("length", [0, 10, 100_000, 1_000_000])
def test_every_call(clients: Clients, name: Names, length: int) -> None:
    async def use() -> None:
        a, b = clients[0].aio, clients[1].aio
        value = np.arange(length, dtype=np.float64)
        one = await a.put(value, name("one"), timeout=TIMEOUT)
        async with await a.create(name("two"), length, np.float64) as creation:
            creation.array[:] = 1
            creation.advance(8 * (length // 2))
        np.testing.assert_array_equal(await b.get(one, timeout=TIMEOUT), value)
        copied = await b.get(one, copy=True, timeout=TIMEOUT)
        assert copied.flags.writeable
        np.testing.assert_array_equal(copied, value)
        room = np.empty(length)
        assert await b.get(one, out=room, timeout=TIMEOUT) is room
        np.testing.assert_array_equal(room, value)
        sources = [one, creation.id]
        result = await b.reduce(sources, target=name("sum"), timeout=TIMEOUT)
        assert set(result.sources) == set(sources)
        np.testing.assert_array_equal(await a.get(result.target, timeout=TIMEOUT), value + 1)
        result = await a.allreduce(sources, target=name("max"), op="max", timeout=TIMEOUT)
        np.testing.assert_array_equal(await a.get(result.target, timeout=TIMEOUT), np.maximum(value, 1))
        object_id = await a.put_object({"value": value}, name("object"))
        np.testing.assert_array_equal((await b.get_object(object_id, timeout=TIMEOUT))["value"], value)
        assert (await b.wait([one, "never"], 1, timeout=TIMEOUT))[0] == [one]
        await a.prefetch([one], [clients[3].node])
        assert (await a.locations(one)).size == value.nbytes
        assert (await a.status()).node == clients[0].node
        await b.delete(one)
        with pytest.raises(hoplite.ObjectDeleted, match="one"):
            await get_until_gone(a, one)

    asyncio.run(use())


def test_many_gets_at_once_on_one_thread(clients: Clients, name: Names) -> None:
    names = [name(i) for i in range(300)]

    async def use() -> None:
        # Only connecting uses a thread, once.
        await asyncio.gather(clients[0].aio.status(), clients[1].aio.status())
        gets = [asyncio.create_task(clients[1].aio.get(each, timeout=TIMEOUT)) for each in names]
        await asyncio.sleep(0)
        threads = threading.active_count()
        for i, each in enumerate(names):
            await clients[0].aio.put(np.full(100, i), each)
        for i, got in enumerate(await asyncio.gather(*gets)):
            assert got[0] == i
        assert threading.active_count() == threads

    asyncio.run(use())


@pytest.mark.parametrize(
    "call",
    [
        lambda client, name: client.get(name),
        lambda client, name: client.get(name, copy=True),
        lambda client, name: client.wait([name]),
    ],
    ids=["get", "copy", "wait"],
)
def test_cancelling_the_task_cancels_the_call(
    clients: Clients, name: Names, call: Callable[[hoplite.AsyncClient, str], Awaitable[object]]
) -> None:
    async def use() -> None:
        task = asyncio.ensure_future(call(clients[2].aio, name()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await clients[2].aio.status(timeout=TIMEOUT)).node == clients[2].node

    asyncio.run(use())


def test_a_reduction_goes_on_without_its_awaiter_until_the_target_is_deleted(
    clients: Clients, name: Names
) -> None:
    async def use() -> None:
        aio = clients[2].aio
        for sources, ends_well in (([name("a"), name("b")], True), ([name("c"), name("d")], False)):
            target = name("target")
            task = asyncio.create_task(aio.reduce(sources, target=target))
            while (await aio.status()).reductions == 0:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if ends_well:
                for source in sources:
                    await aio.put(np.ones(100_000), source)
                assert (await aio.get(target, timeout=TIMEOUT)).sum() == 200_000
            else:
                await aio.delete(target)

    asyncio.run(use())
    eventually(lambda: clients[2].status().reductions == 0, "neither reduction is left")


def test_a_put_cancelled_while_copying_is_withdrawn(
    clients: Clients, name: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = name()
    copying, go_on = threading.Event(), threading.Event()
    to_thread = asyncio.to_thread

    async def held(copy: Callable[[], object]) -> object:
        def wait_and_copy() -> object:
            copying.set()
            assert go_on.wait(TIMEOUT)
            return copy()

        return await to_thread(wait_and_copy)

    async def use() -> None:
        await clients[0].aio.status()
        monkeypatch.setattr(asyncio, "to_thread", held)
        task = asyncio.create_task(clients[0].aio.put(np.zeros(24 << 20, np.uint8), id))
        await to_thread(copying.wait, TIMEOUT)
        task.cancel()
        await asyncio.sleep(0)
        # The thread still writes to the memory, so the task ends after the thread.
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    eventually(lambda: clients[0].locations(id).copies == (), "the object is withdrawn")
    clients[1].put(np.ones(10), id, timeout=TIMEOUT)


def test_the_loop_runs_while_large_objects_are_copied(clients: Clients, name: Names) -> None:
    async def use() -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        heart = asyncio.create_task(beat())
        id = await clients[0].aio.put(np.zeros(48 << 20, np.uint8), name())
        put_beats = beats
        await clients[1].aio.get(id, copy=True, timeout=TIMEOUT)
        heart.cancel()
        assert put_beats > 10
        assert beats > put_beats + 10

    asyncio.run(use())


def test_timeouts_and_errors(clients: Clients, name: Names) -> None:
    async def use() -> None:
        with pytest.raises(hoplite.TimedOut, match="never"):
            await clients[0].aio.get("never", timeout=0.02)
        with pytest.raises(hoplite.BadArgument, match="put_object"):
            await clients[0].aio.put(object())
        with pytest.raises(hoplite.BadArgument, match="num_objects"):
            await clients[0].aio.reduce(["a"], num_objects=2)
        creation = await clients[0].aio.create(name(), 100_000, np.uint8)
        with pytest.raises(KeyError):
            async with creation:
                raise KeyError
        with pytest.raises(hoplite.TimedOut):
            await clients[1].aio.get(creation.id, timeout=0.02)

    asyncio.run(use())


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_bad_timeouts_of_the_first_call(client: hoplite.Client, timeout: float) -> None:
    with pytest.raises(hoplite.BadArgument, match="timeout"):
        asyncio.run(client.aio.get("x", timeout=timeout))


def test_one_loop_after_the_other(client: hoplite.Client, name: Names) -> None:
    id = client.put(np.arange(10), name())
    for _ in range(3):
        assert asyncio.run(client.aio.get(id, timeout=TIMEOUT))[9] == 9


def test_two_loops_at_once_are_refused(client: hoplite.Client) -> None:
    async def use() -> None:
        await client.aio.status()
        with pytest.raises(hoplite.BadArgument, match="event loop"):
            await asyncio.to_thread(asyncio.run, client.aio.status())
        await client.aio.status()

    asyncio.run(use())


def test_a_dying_node_ends_every_call() -> None:
    async def use(cluster: hoplite.LocalCluster, client: hoplite.Client) -> None:
        gets = [asyncio.create_task(client.aio.get(f"never {i}")) for i in range(5)]
        await client.aio.status()
        cluster.kill(0)
        for get in gets:
            with pytest.raises(hoplite.NodeUnreachable):
                await get

    with hoplite.LocalCluster(1, store_size="16MiB") as cluster:
        asyncio.run(use(cluster, cluster.connect(0)))


def test_a_loop_ends_at_once_while_it_connects(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(0)
    pair.pause(0)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(client.aio.get("x"), 0.2))
    assert time.monotonic() - began < 5
    pair.resume(0)


def test_close_ends_every_call(cluster: hoplite.LocalCluster) -> None:
    async def use() -> None:
        client = cluster.connect(0)
        get = asyncio.create_task(client.aio.get("never"))
        await client.aio.status()
        client.close()
        with pytest.raises(hoplite.Aborted):
            await get

    asyncio.run(use())
