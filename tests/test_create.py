"""Objects written in place."""

from __future__ import annotations

import hoplite
import numpy as np
import pytest
from conftest import TIMEOUT, Clients, Names, eventually


@pytest.mark.parametrize("shape", [0, 10, (), (100, 1000)])
def test_leaving_the_block_seals(clients: Clients, name: Names, shape: int | tuple[int, ...]) -> None:
    with clients[0].create(name(), shape, np.float32) as creation:
        assert not creation.already_there
        creation.array[...] = 3
    got = clients[1].get(creation.id, timeout=TIMEOUT)
    np.testing.assert_array_equal(got, np.full(shape, 3, np.float32))
    assert not creation.array.flags.writeable


def test_an_exception_aborts(clients: Clients, name: Names) -> None:
    id = name()
    with pytest.raises(KeyError), clients[0].create(id, 100_000, np.uint8):
        raise KeyError
    with pytest.raises(hoplite.TimedOut):
        clients[1].get(id, timeout=0.05)
    # The name is free again, even for another size.
    clients[2].put(np.arange(5), id)
    np.testing.assert_array_equal(clients[1].get(id, timeout=TIMEOUT), np.arange(5))


@pytest.mark.parametrize("copy", [False, True])
def test_an_aborted_object_reaches_nobody(clients: Clients, name: Names, copy: bool) -> None:
    from concurrent.futures import ThreadPoolExecutor

    id = name()
    size = 4 << 20
    creation = clients[0].create(id, size, np.uint8)
    with ThreadPoolExecutor(2) as threads:
        gets = [threads.submit(clients[i].get, id, timeout=TIMEOUT, copy=copy) for i in (1, 2)]
        creation.array[:] = 1
        creation.advance(size // 2)
        received = [clients[i].status().received_bytes for i in (1, 2)]
        eventually(
            lambda: clients[0].locations(id).copies and len(clients[0].locations(id).copies) > 1,
            "someone receives the first writing",
        )
        creation.abort()
        clients[3].put(np.full(size, 2, np.uint8), id)
        for get in gets:
            assert (get.result() == 2).all()
    assert len(received) == 2


def test_the_same_again_is_accepted(client: hoplite.Client, name: Names) -> None:
    id = client.put(np.arange(100_000), name())
    with client.create(id, 100_000, np.int64) as creation:
        assert creation.already_there
        creation.array[:] = -1
    np.testing.assert_array_equal(client.get(id), np.arange(100_000))
    assert client.put(np.arange(100_000), id) == id


def test_sealed_once_and_for_all(client: hoplite.Client, name: Names) -> None:
    creation = client.create(name(), 10, np.uint8)
    creation.seal()
    with pytest.raises(hoplite.BadArgument, match="sealed"):
        creation.seal()
    with pytest.raises(hoplite.BadArgument, match="sealed"):
        creation.advance(1)
    with pytest.raises(ValueError, match="read-only"):
        creation.array[0] = 1
    creation.abort()
    client.get(creation.id, timeout=TIMEOUT)


def test_a_failed_seal_withdraws_the_object(client: hoplite.Client, name: Names) -> None:
    creation = client.create(name(), 100_000, np.uint8)
    with pytest.raises(TypeError):
        creation.seal(timeout="soon")  # type: ignore[arg-type]
    client.put(np.ones(5), creation.id, timeout=TIMEOUT)


def test_advance_past_the_end_is_refused(client: hoplite.Client, name: Names) -> None:
    with client.create(name(), 10, np.uint8) as creation:
        creation.advance(10)
        creation.advance(5)
        with pytest.raises(hoplite.BadArgument, match="10"):
            creation.advance(11)


@pytest.mark.parametrize("shape", [-1, (2, -3)])
def test_bad_shapes(client: hoplite.Client, shape: int | tuple[int, ...]) -> None:
    with pytest.raises(hoplite.BadArgument, match="negative"):
        client.create("x", shape, np.uint8)
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        client.create("x", 3, object)
