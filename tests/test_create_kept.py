"""The memory of a created object is not reused while its array exists."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import MIB, TIMEOUT, eventually, process

STORE_MIB = 32
SIZE = 8 * MIB


@pytest.fixture
def cluster() -> Iterator[hoplite.LocalCluster]:
    """One node with a small store, of the test's own."""
    with hoplite.LocalCluster(1, store_size=f"{STORE_MIB}MiB") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: hoplite.LocalCluster) -> hoplite.Client:
    return cluster.connect(0)


def used(client: hoplite.Client) -> int:
    return client.status().used_bytes


def fill(client: hoplite.Client) -> list[hoplite.ObjectId]:
    """Other pinned objects that fill the store."""
    made: list[hoplite.ObjectId] = []
    try:
        while True:
            made.append(client.put(np.full(MIB, 100 + len(made), np.uint8), timeout=0.1))
    except hoplite.StoreFull:
        return made


def check(client: hoplite.Client, made: list[hoplite.ObjectId]) -> None:
    """Check that the others are unchanged and fill the rest of the store."""
    assert STORE_MIB - SIZE // MIB - 2 <= len(made) <= STORE_MIB - SIZE // MIB
    for i, id in enumerate(made):
        assert (client.get(id, timeout=TIMEOUT) == 100 + i).all()


def deleted(client: hoplite.Client) -> hoplite.Creation:
    with client.create("it", SIZE, np.uint8) as creation:
        creation.array[:] = 1
    client.delete("it", timeout=TIMEOUT)
    return creation


def aborted(client: hoplite.Client) -> hoplite.Creation:
    creation = client.create("it", SIZE, np.uint8)
    creation.array[:] = 1
    creation.abort()
    return creation


def left_by_an_exception(client: hoplite.Client) -> hoplite.Creation:
    try:
        with client.create("it", SIZE, np.uint8) as creation:
            creation.array[:] = 1
            raise KeyError
    except KeyError:
        return creation


def deleted_before_its_seal(client: hoplite.Client) -> hoplite.Creation:
    creation = client.create("it", SIZE, np.uint8)
    creation.array[:] = 1
    client.delete("it", timeout=TIMEOUT)
    try:
        creation.seal(timeout=TIMEOUT)
    except hoplite.ObjectDeleted:
        return creation
    raise AssertionError("what was deleted was sealed")


def never_sealed(client: hoplite.Client) -> hoplite.Creation:
    creation = client.create("it", SIZE, np.uint8)
    creation.array[:] = 1
    return creation


ENDS = [deleted, aborted, left_by_an_exception, deleted_before_its_seal, never_sealed]


@pytest.mark.parametrize("end", ENDS)
def test_the_array_keeps_its_bytes(
    client: hoplite.Client, end: Callable[[hoplite.Client], hoplite.Creation]
) -> None:
    array = end(client).array
    gc.collect()
    made = fill(client)
    assert (array == 1).all()
    check(client, made)
    row = array[10:20]
    del array
    gc.collect()
    assert used(client) > SIZE + len(made) * MIB
    assert (row == 1).all()
    del row
    gc.collect()
    eventually(lambda: used(client) < SIZE + len(made) * MIB, "its room is back")
    client.put(np.ones(SIZE, np.uint8), timeout=TIMEOUT)


def test_writing_through_a_view_made_before_the_end_harms_no_other_object(client: hoplite.Client) -> None:
    creation = client.create("it", SIZE, np.uint8)
    part, view = creation.array[:MIB], memoryview(creation.array)
    creation.seal(timeout=TIMEOUT)
    client.delete("it", timeout=TIMEOUT)
    del creation
    gc.collect()
    made = fill(client)
    part[:] = 7
    view[MIB:] = bytes([8]) * (SIZE - MIB)
    check(client, made)
    client.delete(made, timeout=TIMEOUT)
    assert used(client) >= SIZE
    view.release()
    assert (part == 7).all()
    del part, view
    gc.collect()
    eventually(lambda: used(client) == 0, "its room is back")


def test_the_array_of_an_asynchronous_creation(client: hoplite.Client) -> None:
    async def make(end: str) -> Any:
        creation = await client.aio.create(end, SIZE, np.uint8)
        creation.array[:] = 1
        if end == "sealed":
            await creation.seal(timeout=TIMEOUT)
        else:
            creation.abort()
        await client.aio.delete(end, timeout=TIMEOUT)
        return creation.array

    for end in ("sealed", "aborted"):
        array = asyncio.run(make(end))
        gc.collect()
        made = fill(client)
        assert (array == 1).all()
        check(client, made)
        client.delete(made, timeout=TIMEOUT)
        del array
        gc.collect()
        eventually(lambda: used(client) == 0, "its room is back")


def test_closing_the_client_leaves_the_array(cluster: hoplite.LocalCluster, client: hoplite.Client) -> None:
    with cluster.connect(0) as short:
        array = deleted(short).array
    gc.collect()
    made = fill(client)
    assert (array == 1).all()
    check(client, made)


def test_the_private_memory_of_a_second_create_is_kept(client: hoplite.Client) -> None:
    """The second array belongs to no object. Its memory is not reused either."""
    creation = client.create("it", SIZE, np.uint8)
    client.put(np.full(MIB, 2, np.uint8), "other", timeout=TIMEOUT)
    again = client.create("other", MIB, np.uint8)
    assert again.already_there
    again.array[:] = 3
    creation.array[:] = 1
    creation.seal(timeout=TIMEOUT)
    assert (client.get("other", timeout=TIMEOUT) == 2).all()
    assert (again.array == 3).all()


HOLD = f"""
import signal, sys, numpy as np, hoplite
client = hoplite.connect(sys.argv[1])
arrays = []
for name in ("deleted", "aborted", "sealed", "open"):
    creation = client.create(name, {4 * MIB}, np.uint8)
    arrays.append(creation.array)
    if name == "aborted":
        creation.abort()
    elif name != "open":
        creation.seal()
client.delete("deleted")
print("ready", flush=True)
signal.pause()
"""


def test_memory_kept_by_a_dead_client_is_freed(cluster: hoplite.LocalCluster, client: hoplite.Client) -> None:
    with process(sys.executable, "-c", HOLD, cluster.sockets[0]) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert used(client) >= 16 * MIB
        child.send_signal(signal.SIGKILL)
        child.wait()
    eventually(lambda: used(client) < 5 * MIB, "all but the sealed object's room is back")
    client.delete("sealed", timeout=TIMEOUT)
    assert used(client) == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_releases_nothing(client: hoplite.Client) -> None:
    """The child has the array too, but only the parent's counts."""
    creation = deleted(client)
    array = creation.array
    child = os.fork()
    if child == 0:
        del creation, array
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    made = fill(client)
    assert (array == 1).all()
    check(client, made)


def test_put_keeps_no_memory_of_its_own(client: hoplite.Client) -> None:
    """A put hands out no memory, so a delete frees the space at once."""
    client.put(np.ones(SIZE, np.uint8), "it", timeout=TIMEOUT)
    client.delete("it", timeout=TIMEOUT)
    assert used(client) == 0
