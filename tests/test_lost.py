"""The last complete copy of an object dies. Gets raise `ObjectLost` at once, or wait for a new put."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import ClusterOf, Threads, eventually
from faults import MIB, SIZE, SOON, TIMEOUT, SlowPut, has_received, holders, names_owned_by

Get = Callable[..., Any]


GETS: dict[str, Get] = {
    "view": lambda client, id, **options: client.get(id, **options),
    "copy": lambda client, id, **options: client.get(id, copy=True, **options),
    "out": lambda client, id, **options: client.get(id, out=np.empty(SIZE, np.uint8), **options),
    "async view": lambda client, id, **options: asyncio.run(client.aio.get(id, **options)),
    "async copy": lambda client, id, **options: asyncio.run(client.aio.get(id, copy=True, **options)),
}


class Loss:
    """Three nodes. Only the last one has the object, and it dies."""

    def __init__(self, cluster: hoplite.LocalCluster, owner: int, threads: Threads) -> None:
        self.cluster = cluster
        self.threads = threads
        self.clients = [cluster.connect(i) for i in range(3)]
        (self.name,) = names_owned_by(self.clients, owner)
        rng = np.random.default_rng(owner)
        self.first, self.second = (rng.integers(0, 256, SIZE, np.uint8) for _ in range(2))

    def half_way(self, get: Get, **options: Any) -> Future[Any]:
        """A get on the first node that has half of the object when the rest is lost."""
        put = SlowPut(self.clients[2], self.name, self.first)
        future = self.threads.submit(get, self.clients[0], self.name, timeout=TIMEOUT, **options)
        put.write(SIZE // 2)
        has_received(self.clients[0], SIZE // 2 - MIB)
        # The other half is written but never reaches the first node.
        self.cluster.pause(0)
        put.finish()
        self.is_complete_on_the_last()
        self.cluster.kill(2)
        self.cluster.resume(0)
        return future

    def at_its_start(self, get: Get, **options: Any) -> Future[Any]:
        """A get on the first node. Its sender is paused, and then dies."""
        self.clients[2].put(self.first, self.name, timeout=TIMEOUT)
        self.is_complete_on_the_last()
        self.cluster.pause(2)
        future = self.threads.submit(get, self.clients[0], self.name, timeout=TIMEOUT, **options)
        eventually(lambda: self.clients[0].status(timeout=TIMEOUT).transfers > 0, "it has been lent a sender")
        self.cluster.kill(2)
        return future

    def is_complete_on_the_last(self) -> None:
        last = self.cluster.addresses[2]
        eventually(lambda: holders(self.clients[1], self.name) == {last}, "its completeness is known")

    def put_again(self) -> None:
        self.clients[1].put(self.second, self.name, timeout=TIMEOUT)


@pytest.fixture
def lose(threads: Threads, cluster_of: ClusterOf) -> Callable[[int], Loss]:
    return lambda owner: Loss(cluster_of(3), owner, threads)


def is_told(future: Future[Any]) -> hoplite.ObjectLost:
    started = time.monotonic()
    with pytest.raises(hoplite.ObjectLost) as caught:
        future.result()
    assert time.monotonic() - started < SOON
    assert caught.value.object_id is not None
    return caught.value


@pytest.mark.parametrize("get", GETS.values(), ids=GETS)
def test_a_running_get_raises_object_lost(lose: Callable[[int], Loss], get: Get) -> None:
    is_told_half_way(lose(1), get)


@pytest.mark.torch
def test_a_running_get_of_a_tensor_raises_object_lost(lose: Callable[[int], Loss]) -> None:
    pytest.importorskip("torch")
    is_told_half_way(lose(1), lambda client, id, **options: client.get_torch(id, **options).numpy())


def is_told_half_way(loss: Loss, get: Get) -> None:
    error = is_told(loss.half_way(get))
    assert error.object_id == hoplite.ObjectId.from_name(loss.name)
    assert loss.name in str(error)
    assert "put under the same id" in str(error)
    assert error.is_retryable


@pytest.mark.parametrize("kind", ["view", "out", "async copy"])
def test_a_waiting_get_never_mixes_two_contents(lose: Callable[[int], Loss], kind: str) -> None:
    loss = lose(1)
    future = loss.half_way(GETS[kind], on_lost="wait")
    # The object is certainly lost, as another get reports.
    is_told(loss.threads.submit(loss.clients[0].get, loss.name, timeout=TIMEOUT))
    assert not future.done()
    loss.put_again()
    np.testing.assert_array_equal(future.result(), loss.second)


@pytest.mark.parametrize("kind", ["copy", "async view"])
def test_the_callback_is_called_once_and_the_get_goes_on(lose: Callable[[int], Loss], kind: str) -> None:
    loss = lose(1)
    told: list[hoplite.ObjectId] = []
    called = threading.Event()

    def on_lost(id: hoplite.ObjectId) -> None:
        told.append(id)
        called.set()

    future = loss.half_way(GETS[kind], on_lost=on_lost)
    assert called.wait(SOON)
    assert not future.done()
    loss.put_again()
    np.testing.assert_array_equal(future.result(), loss.second)
    assert told == [hoplite.ObjectId.from_name(loss.name)]


# The owner of the directory entry is the getter's node, another node, or the node that dies.
@pytest.mark.parametrize("owner", [1, 2])
def test_a_running_get_raises_with_every_directory_owner(lose: Callable[[int], Loss], owner: int) -> None:
    loss = lose(owner)
    is_told(loss.half_way(GETS["copy"]))
    # Later gets on all nodes raise too.
    for client in loss.clients[:2]:
        is_told(loss.threads.submit(client.get, loss.name, timeout=TIMEOUT))
    loss.put_again()
    for client in loss.clients[:2]:
        np.testing.assert_array_equal(client.get(loss.name, timeout=TIMEOUT), loss.second)


@pytest.mark.parametrize("owner", [0, 1])
def test_a_starting_get_raises_with_every_directory_owner(lose: Callable[[int], Loss], owner: int) -> None:
    loss = lose(owner)
    is_told(loss.at_its_start(GETS["view"]))


@pytest.mark.parametrize("owner", [1, 2])
def test_a_get_after_the_loss_raises(lose: Callable[[int], Loss], owner: int) -> None:
    loss = lose(owner)
    loss.clients[2].put(loss.first, loss.name, timeout=TIMEOUT)
    loss.is_complete_on_the_last()
    # No other node has asked for the object. If its holder owned the entry, no living node knows of it.
    loss.cluster.kill(2)
    for client in loss.clients[:2]:
        is_told(loss.threads.submit(client.get, loss.name, timeout=TIMEOUT))
        is_told(loss.threads.submit(client.wait, [loss.name], timeout=TIMEOUT, on_lost="raise"))
    loss.put_again()
    np.testing.assert_array_equal(loss.clients[0].get(loss.name, timeout=TIMEOUT), loss.second)


def test_a_timed_out_put_is_not_lost(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(2)
    clients = [cluster.connect(i) for i in range(2)]
    (name,) = names_owned_by(clients, 1)
    cluster.pause(1)
    with pytest.raises(hoplite.TimedOut):
        clients[0].put(b"in vain", name, timeout=0.05)
    cluster.resume(1)
    # The owner answers requests of one node in order, so it knows that the put has ended.
    assert clients[0].locations(name, timeout=TIMEOUT).copies == ()
    for client in clients:
        with pytest.raises(hoplite.TimedOut):
            client.get(name, timeout=0.1)
    clients[0].put(b"once more", name, timeout=TIMEOUT)
    assert bytes(clients[1].get(name, timeout=TIMEOUT)) == b"once more"


def test_the_callback_may_put_the_object_itself(lose: Callable[[int], Loss]) -> None:
    loss = lose(1)

    def produce(id: hoplite.ObjectId) -> None:
        loss.clients[0].put(loss.second, id, timeout=TIMEOUT)

    future = loss.half_way(GETS["view"], on_lost=produce)
    np.testing.assert_array_equal(future.result(), loss.second)


def test_an_asyncio_callback_is_awaited(lose: Callable[[int], Loss]) -> None:
    loss = lose(1)

    async def produce(id: hoplite.ObjectId) -> None:
        await loss.clients[0].aio.put(loss.second, id, timeout=TIMEOUT)

    future = loss.half_way(GETS["async view"], on_lost=produce)
    np.testing.assert_array_equal(future.result(), loss.second)


@pytest.mark.parametrize("kind", ["view", "async copy"])
def test_an_exception_of_the_callback_ends_the_get(lose: Callable[[int], Loss], kind: str) -> None:
    loss = lose(1)

    def give_up(id: hoplite.ObjectId) -> None:
        raise KeyError(str(id))

    with pytest.raises(KeyError, match=loss.name):
        loss.half_way(GETS[kind], on_lost=give_up).result()


def test_a_blocking_get_does_not_await(lose: Callable[[int], Loss]) -> None:
    loss = lose(1)

    async def produce(id: hoplite.ObjectId) -> None:
        raise AssertionError("nobody awaits this")

    with pytest.raises(hoplite.BadArgument, match=r"client\.aio"):
        loss.half_way(GETS["view"], on_lost=produce).result()


def test_pickled_objects_are_lost_too(threads: Threads, cluster_of: ClusterOf) -> None:
    cluster = cluster_of(3)
    clients = [cluster.connect(i) for i in range(3)]
    (name,) = names_owned_by(clients, 1)
    clients[2].put_object({"half": bytes(MIB)}, name, timeout=TIMEOUT)
    eventually(lambda: holders(clients[1], name), "its completeness is known")
    cluster.pause(2)
    gets = [
        threads.submit(clients[0].get_object, name, timeout=TIMEOUT, on_lost=on_lost)
        for on_lost in ("raise", "wait")
    ]
    eventually(lambda: clients[0].status(timeout=TIMEOUT).transfers > 0, "it has been lent a sender")
    cluster.kill(2)
    is_told(gets[0])
    clients[1].put_object({"whole": 1}, name, timeout=TIMEOUT)
    assert gets[1].result() == {"whole": 1}


class ManyLost:
    """Three nodes and five objects: three only on the last node, one on another, one not put yet."""

    def __init__(self, cluster: hoplite.LocalCluster) -> None:
        self.cluster = cluster
        self.clients = [cluster.connect(i) for i in range(3)]
        names = names_owned_by(self.clients, 0, 2) + names_owned_by(self.clients, 1, 3)
        self.ids = [hoplite.ObjectId.from_name(name) for name in names]
        self.value = np.arange(MIB)
        self.lost, self.kept, self.missing = [self.ids[i] for i in (0, 1, 3)], self.ids[2], self.ids[4]
        for id in self.lost:
            self.clients[2].put(self.value, id, timeout=TIMEOUT)
        self.clients[1].put(self.value, self.kept, timeout=TIMEOUT)
        # Four objects are known to be ready before three of them are lost.
        eventually(lambda: len(self.wait(timeout=0.2)[0]) == 4, "all that was put is known")

    def wait(self, count: int | None = None, **options: Any) -> tuple[list[Any], list[Any]]:
        return self.clients[0].wait(self.ids, count, **options)

    def lose(self) -> None:
        self.cluster.kill(2)
        for id in self.lost:
            with pytest.raises(hoplite.ObjectLost):
                self.clients[0].get(id, timeout=TIMEOUT)


def test_a_wait_reports_every_loss(threads: Threads, cluster_of: ClusterOf) -> None:
    many = ManyLost(cluster_of(3))
    many.lose()
    told: list[hoplite.ObjectId] = []

    def produce(id: hoplite.ObjectId) -> None:
        told.append(id)
        many.clients[1].put(many.value, id, timeout=TIMEOUT)

    wait = threads.submit(many.wait, 4, timeout=TIMEOUT, on_lost=produce)
    ready, not_ready = wait.result()
    assert sorted(told) == sorted(many.lost)
    assert not_ready == [many.missing]
    assert sorted(ready) == sorted([*many.lost, many.kept])
    assert {id.name for id in told} == {id.name for id in many.lost}


def test_a_wait_may_raise_or_wait_on(threads: Threads, cluster_of: ClusterOf) -> None:
    many = ManyLost(cluster_of(3))
    waits = [threads.submit(many.wait, timeout=TIMEOUT, on_lost=on_lost) for on_lost in ("raise", "wait")]
    default = threads.submit(many.wait, timeout=TIMEOUT)
    many.lose()
    # The three were ready before. A new wait reports them as lost.
    with pytest.raises(hoplite.ObjectLost) as caught:
        many.wait(timeout=TIMEOUT, on_lost="raise")
    assert caught.value.object_id in many.lost
    for id in [*many.lost, many.missing]:
        many.clients[1].put(many.value, id, timeout=TIMEOUT)
    assert waits[1].result()[1] == []
    assert default.result()[1] == []


def test_an_asyncio_wait_awaits_the_callback(cluster_of: ClusterOf) -> None:
    many = ManyLost(cluster_of(3))
    many.lose()
    aio = many.clients[0].aio

    async def produce(id: hoplite.ObjectId) -> None:
        await aio.put(many.value, id, timeout=TIMEOUT)

    ready, _ = asyncio.run(aio.wait(many.ids, 4, timeout=TIMEOUT, on_lost=produce))
    assert sorted(ready) == sorted([*many.lost, many.kept])


@pytest.mark.parametrize("on_lost", ["no such word", None, 3])
def test_invalid_values_of_on_lost_are_refused(client: hoplite.Client, on_lost: Any) -> None:
    for call in (client.get, client.get_object, client.wait):
        with pytest.raises(hoplite.BadArgument, match="on_lost"):
            call("x", on_lost=on_lost, timeout=TIMEOUT)
