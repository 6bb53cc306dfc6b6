"""A daemon is killed. Its clients notice at once, keep their views, and reconnect when it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import eventually
from faults import MIB, TIMEOUT

AT_ONCE = 1.0
"""Seconds: the end of a socket is seen in less than a millisecond, the death of a node that a copy is
followed from within 50 ms; the rest is for a busy machine."""

CALLS: dict[str, Callable[[hoplite.Client], Any]] = {
    "get": lambda client: client.get("never"),
    "get copy": lambda client: client.get("half", copy=True),
    "get_object": lambda client: client.get_object("never"),
    "wait": lambda client: client.wait(["never"]),
    "reduce": lambda client: client.reduce(["never", "ever"]).result(),
    "put": lambda client: client.put(bytes(12 * MIB), "too large for now"),
    "async get": lambda client: asyncio.run(client.aio.get("never")),
    "async reduce": lambda client: asyncio.run(client.aio.reduce(["never", "ever"])),
}


@pytest.fixture
def node() -> Any:
    """A single node of the test's own."""
    with hoplite.LocalCluster(1, store_size="16MiB") as cluster:
        yield cluster


def is_told(future: Future[Any]) -> str:
    started = time.monotonic()
    with pytest.raises(hoplite.NodeUnreachable) as caught:
        future.result()
    assert time.monotonic() - started < AT_ONCE
    return str(caught.value)


def test_every_call_under_way_fails_at_once(threads: ThreadPoolExecutor, node: hoplite.LocalCluster) -> None:
    # All calls wait: most for objects that never come, one half-way, one for space.
    writer = node.connect()
    half = writer.create("half", 8 * MIB, np.uint8)
    half.advance(4 * MIB)
    clients = [node.connect() for _ in CALLS]
    # The asyncio calls have a connection of their own.
    connections = 1 + len(CALLS) + sum(kind.startswith("async") for kind in CALLS) + 1
    calls = [threads.submit(call, client) for call, client in zip(CALLS.values(), clients, strict=True)]
    watcher = node.connect()
    eventually(lambda: watcher.status(timeout=TIMEOUT).clients == connections, "all are connected")
    eventually(lambda: watcher.status(timeout=TIMEOUT).reductions == 2, "the reductions have begun")
    node.kill(0)
    for call in calls:
        message = is_told(call)
        assert node.addresses[0] in message
        assert "reconnect" in message
    # Every later call fails too, also the writer's.
    half.advance(8 * MIB)
    is_told(threads.submit(half.seal))
    for client in clients:
        for call in CALLS.values():
            is_told(threads.submit(call, client))


def test_a_client_reconnects_when_its_node_is_back(node: hoplite.LocalCluster) -> None:
    client = node.connect()
    kept = client.get(client.put(np.arange(MIB), "kept in view"), timeout=TIMEOUT)
    node.kill(0)
    with pytest.raises(hoplite.NodeUnreachable, match=r"no hoplite node answers at .*hoplite node"):
        client.reconnect(timeout=0.1)
    node.restart(0)
    # It does not reconnect by itself: the node's objects are gone, and the program must know.
    with pytest.raises(hoplite.NodeUnreachable, match="what only it held is lost"):
        client.put(b"x")
    client.reconnect(timeout=TIMEOUT)
    client.reconnect(timeout=TIMEOUT)
    with pytest.raises(hoplite.TimedOut):
        client.get("kept in view", timeout=0.05)
    np.testing.assert_array_equal(kept, np.arange(MIB))
    client.put(kept, "kept in view", timeout=TIMEOUT)
    np.testing.assert_array_equal(client.get("kept in view", timeout=TIMEOUT), np.arange(MIB))
    assert client.status().clients == 1
    client.close()
    with pytest.raises(hoplite.Aborted):
        client.reconnect()


def test_reconnect_waits_for_the_node(threads: ThreadPoolExecutor, node: hoplite.LocalCluster) -> None:
    clients = [node.connect() for _ in range(2)]
    node.kill(0)
    # Several threads reconnect at once.
    waiting = [threads.submit(client.reconnect, timeout=TIMEOUT) for client in clients * 4]
    node.restart(0)
    for each in waiting:
        each.result()
    for client in clients:
        client.put(bytes(MIB), "again", timeout=TIMEOUT)
    assert clients[0].status().clients == 2


def test_reconnect_keeps_a_working_connection(cluster: hoplite.LocalCluster) -> None:
    with cluster.connect(0) as client:
        reduction = client.reduce(["one that never comes", "another"])
        client.reconnect(timeout=0)
        assert not reduction.done()
        client.delete(reduction.target, timeout=TIMEOUT)
        with pytest.raises(hoplite.ObjectDeleted):
            reduction.result(TIMEOUT)


def test_objects_on_another_node_survive_a_reconnect(pair: hoplite.LocalCluster) -> None:
    client = pair.connect(0)
    for name in ("here only", "there too"):
        client.put(np.arange(MIB), name, timeout=TIMEOUT)
    pair.connect(1).get("there too", timeout=TIMEOUT)
    pair.restart(0)
    pair.wait_members(2)
    client.reconnect(timeout=TIMEOUT)
    np.testing.assert_array_equal(client.get("there too", timeout=TIMEOUT), np.arange(MIB))
    with pytest.raises((hoplite.TimedOut, hoplite.ObjectLost)):
        client.get("here only", timeout=0.1)


@pytest.mark.parametrize("through", ["aio", "blocking"])
def test_asyncio_reconnects_likewise(node: hoplite.LocalCluster, through: str) -> None:
    client = node.connect()

    async def use() -> None:
        aio = client.aio
        await aio.put(np.arange(MIB), "first", timeout=TIMEOUT)
        view = await aio.get("first", timeout=TIMEOUT)
        waiting = asyncio.create_task(aio.get("never"))
        await aio.status()
        node.restart(0)
        with pytest.raises(hoplite.NodeUnreachable):
            await waiting
        for _ in range(2):
            with pytest.raises(hoplite.NodeUnreachable, match="reconnect"):
                await aio.status()
        if through == "aio":
            await aio.reconnect(timeout=TIMEOUT)
        else:
            await asyncio.to_thread(client.reconnect, timeout=TIMEOUT)
        await aio.put(view, "second", timeout=TIMEOUT)
        np.testing.assert_array_equal(await aio.get("second", timeout=TIMEOUT), view)

    asyncio.run(use())
    # Both forms of calls work again, each on its own connection.
    assert client.get("second", timeout=TIMEOUT).size == MIB


def test_asyncio_reconnect_gives_up_in_time(node: hoplite.LocalCluster) -> None:
    client = node.connect()
    node.kill(0)

    async def use() -> None:
        with pytest.raises(hoplite.NodeUnreachable):
            await client.aio.reconnect(timeout=0.1)
        task = asyncio.create_task(client.aio.reconnect(timeout=None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())


def test_a_mute_node_does_not_stop_the_loop(node: hoplite.LocalCluster) -> None:
    client = node.connect()
    node.pause(0)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.01)

    async def use() -> None:
        heart = asyncio.create_task(beat())
        with pytest.raises(hoplite.TimedOut, match="no welcome"):
            await client.aio.get("x", timeout=0)
        assert beats > 10
        heart.cancel()
        # The next call uses the connection that came too late.
        node.resume(0)
        assert (await client.aio.status(timeout=TIMEOUT)).clients == 2

    asyncio.run(use())


def test_close_while_connecting(node: hoplite.LocalCluster) -> None:
    client = node.connect()
    node.pause(0)

    async def use() -> None:
        get = asyncio.create_task(client.aio.get("x"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        client.close()
        node.resume(0)
        with pytest.raises(hoplite.Aborted):
            await get

    asyncio.run(use())
