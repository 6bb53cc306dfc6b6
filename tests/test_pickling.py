"""Arbitrary Python objects, pickled with their buffers out of band."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import hoplite
import numpy as np
import pyarrow as pa
import pytest
from conftest import TIMEOUT
from hoplite._hoplite import ALIGNMENT
from hoplite.errors import Mismatch
from hoplite.pickling import pickled, unpickle


@dataclasses.dataclass
class Model:
    """A class with arrays inside."""

    name: str
    layers: list[np.ndarray]
    nested: dict[str, Any]


def written(value: object) -> memoryview:
    return memoryview(b"".join(pickled(value).parts))


@pytest.mark.parametrize(
    "value", [None, 1, "x" * 100_000, [1, {"a": (2, 3)}], {1, 2}, b"", np.empty(0)], ids=repr
)
def test_plain_values(clients: list[hoplite.Client], name: Callable[..., str], value: object) -> None:
    id = clients[0].put_object(value, name())
    got = clients[1].get_object(id, timeout=TIMEOUT)
    assert type(got) is type(value)
    assert np.array_equal(got, value) if isinstance(value, np.ndarray) else got == value


def test_buffers_inside_are_views_of_the_store(
    clients: list[hoplite.Client], name: Callable[..., str]
) -> None:
    model = Model("m", [np.arange(100_000.0), np.ones((3, 5), order="F")], {"t": pa.table({"x": [1, 2, 3]})})
    id = clients[0].put_object(model, name())
    got = clients[3].get_object(id, timeout=TIMEOUT)
    again = clients[3].get_object(id, timeout=TIMEOUT)
    assert got.name == "m"
    for a, b in zip(got.layers, model.layers, strict=True):
        np.testing.assert_array_equal(a, b)
    assert got.nested["t"].equals(model.nested["t"])
    assert got.layers[0].ctypes.data == again.layers[0].ctypes.data
    assert not got.layers[0].flags.writeable
    assert got.layers[0].ctypes.data % ALIGNMENT == 0


def test_buffers_outlive_delete(clients: list[hoplite.Client], name: Callable[..., str]) -> None:
    id = clients[0].put_object([np.arange(200_000)], name())
    (array,) = clients[1].get_object(id, timeout=TIMEOUT)
    clients[0].delete(id)
    clients[1].put(np.zeros(200_000), name("filler"))
    np.testing.assert_array_equal(array, np.arange(200_000))


def test_the_layout_is_as_documented() -> None:
    whole = written([np.arange(10), np.arange(3)])
    assert bytes(whole[:8]) == b"hopickl5"
    assert int.from_bytes(whole[8:16], "little") == 3
    offsets = [int.from_bytes(whole[16 + 16 * i : 24 + 16 * i], "little") for i in range(3)]
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    np.testing.assert_array_equal(np.frombuffer(whole[offsets[1] :], np.int64, 10), np.arange(10))
    np.testing.assert_array_equal(unpickle(whole)[1], np.arange(3))


def test_not_contiguous_buffers_stay_in_the_stream() -> None:
    import pickle

    class Odd:
        def __reduce_ex__(self, protocol: int) -> object:
            return bytes, (pickle.PickleBuffer(memoryview(bytes(range(10)))),)

    assert unpickle(written(Odd())) == bytes(range(10))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"hopickl5" + b"\xff" * 8,
        b"hopickl5" + (1).to_bytes(8, "little") + b"\xff" * 16,
        bytes(100),
    ],
)
def test_invalid_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(Mismatch):
        unpickle(memoryview(content))


def test_get_object_of_an_array_is_a_mismatch(client: hoplite.Client, name: Callable[..., str]) -> None:
    id = client.put(np.arange(3), name("array"))
    with pytest.raises(hoplite.Mismatch, match="array"):
        client.get_object(id)


def test_a_failed_pickling_leaves_nothing(client: hoplite.Client, name: Callable[..., str]) -> None:
    id = name()
    with pytest.raises((TypeError, AttributeError)):
        client.put_object(lambda: 0, id)
    assert client.locations(id).size is None
