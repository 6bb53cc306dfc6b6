"""The default time-out of calls, and calls that time out leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import eventually
from faults import MIB, TIMEOUT, names_owned_by
from hoplite.timeouts import DEFAULT, DEFAULT_TIMEOUT, in_seconds

SHORT = 0.05

CALLS: dict[str, Callable[..., Any]] = {
    "get": lambda client, **options: client.get("never", **options),
    "get copy": lambda client, **options: client.get("never", copy=True, **options),
    "get_object": lambda client, **options: client.get_object("never", **options),
    "reduce": lambda client, **options: client.reduce(["never", "ever"], **options).result(),
    "allreduce": lambda client, **options: client.allreduce(["never", "ever"], **options).result(),
    "async get": lambda client, **options: asyncio.run(client.aio.get("never", **options)),
    "async reduce": lambda client, **options: asyncio.run(client.aio.reduce(["never", "ever"], **options)),
}


PUTS: dict[str, Callable[..., Any]] = {
    "blocking": lambda client, value, name: client.put(value, name, timeout=SHORT),
    "async": lambda client, value, name: asyncio.run(client.aio.put(value, name, timeout=SHORT)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_without_a_timeout_use_the_clients(
    threads: ThreadPoolExecutor, cluster: hoplite.LocalCluster, call: Callable[..., Any]
) -> None:
    hasty, patient = (cluster.connect(1, default_timeout=SHORT) for _ in range(2))
    assert hasty.default_timeout == SHORT
    # None is a time-out too: it waits for ever.
    for_ever = threads.submit(call, patient, timeout=None)
    with pytest.raises(hoplite.TimedOut):
        call(hasty)
    assert not for_ever.done()
    patient.close()
    with pytest.raises(hoplite.Aborted):
        for_ever.result()


def test_wait_uses_the_clients_timeout(cluster: hoplite.LocalCluster) -> None:
    with cluster.connect(1, default_timeout=SHORT) as client:
        assert client.wait(["never"])[0] == []
        assert asyncio.run(client.aio.wait(["never"]))[0] == []


def test_creations_use_the_clients_timeout(pair: hoplite.LocalCluster) -> None:
    clients = [pair.connect(0, default_timeout=SHORT), pair.connect(1)]
    (name,) = names_owned_by(clients, 1)
    pair.pause(1)
    creation = clients[0].create(name, MIB, np.uint8)
    with pytest.raises(hoplite.TimedOut), creation:
        pass
    # The array keeps its memory.
    del creation
    pair.resume(1)
    eventually(lambda: clients[0].status(timeout=TIMEOUT).copies == 0, "it is withdrawn")


def test_the_sources_of_the_default_timeout(
    cluster: hoplite.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOPLITE_TIMEOUT", raising=False)
    assert cluster.connect(0).default_timeout == DEFAULT_TIMEOUT
    monkeypatch.setenv("HOPLITE_TIMEOUT", "12.5")
    assert cluster.connect(0).default_timeout == 12.5
    assert cluster.connect(0, default_timeout=3).default_timeout == 3
    assert cluster.connect(0, default_timeout=None).default_timeout is None
    monkeypatch.setenv("HOPLITE_TIMEOUT", "inf")
    assert cluster.connect(0).default_timeout == float("inf")
    for bad in ("-1", "soon", "nan"):
        monkeypatch.setenv("HOPLITE_TIMEOUT", bad)
        with pytest.raises(hoplite.BadArgument, match="HOPLITE_TIMEOUT"):
            in_seconds(DEFAULT)
    with pytest.raises(hoplite.BadArgument, match="timeout"):
        cluster.connect(0, default_timeout=-1)


@pytest.mark.parametrize("size", [100, 4 * MIB], ids=["small", "large"])
@pytest.mark.parametrize("form", PUTS)
def test_a_timed_out_put_leaves_nothing_behind(pair: hoplite.LocalCluster, size: int, form: str) -> None:
    clients = [pair.connect(i) for i in range(2)]
    (name,) = names_owned_by(clients, 1)
    # The directory's owner does not answer.
    pair.pause(1)
    with pytest.raises(hoplite.TimedOut) as caught:
        PUTS[form](clients[0], bytes(size), name)
    assert name in str(caught.value)
    pair.resume(1)
    eventually(lambda: clients[0].status(timeout=TIMEOUT).copies == 0, "it is withdrawn")
    eventually(lambda: clients[1].locations(name, timeout=TIMEOUT).copies == (), "its owner knows")
    # The name is free for another size.
    clients[1].put(bytes(2 * size), name, timeout=TIMEOUT)
    assert clients[0].get(name, timeout=TIMEOUT).size == 2 * size


def test_a_timed_out_copying_get_has_the_nodes_diagnostics(clients: list[hoplite.Client]) -> None:
    creation = clients[1].create("half of it", 4 * MIB, np.uint8)
    creation.advance(2 * MIB)
    try:
        for timeout in (0.02, 0.3):
            with pytest.raises(hoplite.TimedOut) as caught:
                clients[0].get(creation.id, copy=True, timeout=timeout)
            assert f"of {4 * MIB} bytes copied" in str(caught.value)
            # The message is of the client's own node and names the sender.
            assert str(caught.value).count(clients[0].node) > 1
            assert clients[1].node in str(caught.value)
            assert caught.value.object_id == hoplite.ObjectId.from_name("half of it")
    finally:
        creation.abort()


def test_a_deleted_object_ends_a_copying_get(
    threads: ThreadPoolExecutor, clients: list[hoplite.Client]
) -> None:
    creation = clients[1].create("half, then deleted", 4 * MIB, np.uint8)
    creation.advance(2 * MIB)
    get = threads.submit(clients[0].get, creation.id, copy=True, timeout=TIMEOUT)
    eventually(lambda: len(clients[2].locations(creation.id).copies) == 2, "the get has begun")
    clients[2].delete(creation.id, timeout=TIMEOUT)
    with pytest.raises(hoplite.ObjectDeleted):
        get.result()
    with pytest.raises(hoplite.ObjectDeleted):
        creation.seal(timeout=TIMEOUT)


def test_close_ends_a_copying_get(threads: ThreadPoolExecutor, cluster: hoplite.LocalCluster) -> None:
    with cluster.connect(0) as writer:
        creation = writer.create("half, then closed", 4 * MIB, np.uint8)
        creation.advance(2 * MIB)
        reader = cluster.connect(0)
        get = threads.submit(reader.get, creation.id, copy=True, timeout=TIMEOUT)
        eventually(lambda: reader.status(timeout=TIMEOUT).clients >= 2, "it is connected")
        reader.close()
        with pytest.raises(hoplite.Aborted):
            get.result()
        creation.abort()
