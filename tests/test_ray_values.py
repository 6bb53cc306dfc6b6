"""Values of Ray programs that travel through Hoplite, in both modes, on three nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, TIMEOUT, copies, goes_back_to, is_deleted, on
from ray_objects import LENGTH, large

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")
handles = pytest.importorskip("hoplite.ray.values.handles")

pytestmark = IGNORED


def test_put_values_are_views_of_the_store(api: Any) -> None:
    array = large()
    reference = api.put(array)
    assert copies() == 1
    got = api.get(reference, timeout=TIMEOUT)
    np.testing.assert_array_equal(got, array)
    assert type(got) is np.ndarray
    assert not got.flags.writeable
    assert got.ctypes.data == ray.get(reference).ctypes.data
    with handles.kept_as_handles():
        id = ray.get(reference).id
    del reference
    eventually(lambda: is_deleted(id), "it is deleted with the last reference")
    np.testing.assert_array_equal(got, array)
    del got
    goes_back_to(0)


def test_results_go_from_task_to_task(api: Any) -> None:
    @api.remote(**on(1))
    def make(seed: int) -> np.ndarray:
        return large(seed)

    @ray.remote(**on(2))
    def double(array: np.ndarray) -> float:
        assert not array.flags.writeable
        return float(array.astype(np.float64).sum())

    reference = make.remote(7)
    assert ray.get(double.remote(reference)) == pytest.approx(large(7).astype(np.float64).sum())
    assert copies() == 2
    np.testing.assert_array_equal(ray.get(reference), large(7))
    del reference
    goes_back_to(0)


@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(large().reshape(1024, -1)),
        large()[::2][: LENGTH // 2],
        large().astype(">f4"),
        large().astype("M8[ms]"),
        (large() * 1000).astype(np.int64),
        np.frombuffer(large().tobytes(), "S16"),
        large() + 1j,
    ],
    ids=["fortran", "strided", "big-endian", "dates", "int64", "strings", "complex"],
)
def test_arrays_keep_their_kind(api: Any, value: np.ndarray) -> None:
    reference = api.put(value)
    assert copies() == 1
    got = ray.get(reference)
    np.testing.assert_array_equal(got, value)
    assert got.dtype == value.dtype
    assert got.flags.c_contiguous == (not np.isfortran(value))
    del reference, got
    goes_back_to(0)


def test_small_arrays_and_records_stay_with_ray(api: Any) -> None:
    records = np.zeros(LENGTH, [("a", "f4"), ("b", "i4")])
    objects = np.array([{}] * 200_000, object)
    for value in (large()[:1000], records, objects):
        reference = api.put(value)
        assert copies() == 0
        np.testing.assert_array_equal(ray.get(reference), value)


def test_nested_values_and_arrow(api: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": large(1), "y": large(2)})
    reference = api.put({"a": [large(3), "text"], "table": table, "small": np.arange(3)})
    assert copies() == 3
    got = ray.get(reference)
    np.testing.assert_array_equal(got["a"][0], large(3))
    assert got["a"][1] == "text"
    assert got["table"].equals(table)
    np.testing.assert_array_equal(got["small"], np.arange(3))
    del reference, got
    goes_back_to(0)


def test_all_parts_of_a_value_are_asked_for_before_the_first_is_awaited(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @api.remote(**on(1))
    def make() -> dict[str, np.ndarray]:
        return {name: large(seed) for seed, name in enumerate("abc")}

    load = handles.load

    def load_when_all_are_here(*handle: Any) -> Any:
        eventually(lambda: copies() == 6, "all are brought while the first is waited for")
        return load(*handle)

    reference = make.remote()
    ray.wait([reference], fetch_local=False)
    monkeypatch.setattr(handles, "load", load_when_all_are_here)
    got = api.get(reference, timeout=TIMEOUT)
    assert list(got) == ["a", "b", "c"]
    for seed, array in enumerate(got.values()):
        np.testing.assert_array_equal(array, large(seed))
    del reference, got, array
    goes_back_to(0)


@pytest.mark.torch
def test_tensors(api: Any) -> None:
    torch = pytest.importorskip("torch")
    tensors = {"plain": torch.arange(LENGTH), "half": torch.ones(1024, 1024, dtype=torch.bfloat16)}
    reference = api.put(tensors)
    assert copies() == 2
    got = ray.get(reference)
    assert all(torch.equal(got[name], tensor) for name, tensor in tensors.items())
    del reference, got
    goes_back_to(0)


@pytest.mark.torch
def test_tensors_of_any_layout(api: Any) -> None:
    torch = pytest.importorskip("torch")
    square = torch.arange(LENGTH, dtype=torch.float32).reshape(512, -1)
    views = [square.T, square[:, ::2], square[::2].expand(3, -1, -1), square.to(torch.complex64).conj()]
    for value in views:
        got = ray.get(api.put(value))
        assert got.shape == value.shape
        assert torch.equal(got, value)
    del got
    goes_back_to(0)


@pytest.mark.torch
def test_models_and_gradients(api: Any) -> None:
    torch = pytest.importorskip("torch")

    @api.remote(**on(1))
    def trained(model: Any) -> tuple[dict[str, Any], Any]:
        loss = model(torch.ones(1, 1024)).sum()
        loss.backward()
        return model.state_dict(), model.weight.grad

    model = torch.nn.Linear(1024, 1024)
    state, gradient = ray.get(trained.remote(model))
    # Parameters are a subclass of tensors and stay with Ray. Gradients and states are plain tensors.
    assert torch.equal(gradient, torch.ones(1024, 1024))
    model.load_state_dict(state)
    leaf = torch.ones(LENGTH, requires_grad=True)
    assert ray.get(api.put(leaf)).requires_grad
    del state, gradient
    goes_back_to(0)


def test_several_results_and_generators(api: Any) -> None:
    @api.remote(num_returns=2)
    def two() -> tuple[np.ndarray, str]:
        return large(1), "text"

    @api.remote
    def one_tuple() -> tuple[np.ndarray, str]:
        return large(1), "text"

    @api.remote
    def stream() -> Iterator[np.ndarray]:
        for seed in range(3):
            yield large(seed)

    first, second = two.remote()
    assert ray.get(second) == "text"
    both = ray.get(one_tuple.remote())
    assert type(both) is tuple
    np.testing.assert_array_equal(ray.get(first), large(1))
    np.testing.assert_array_equal(both[0], large(1))
    del first, both
    for seed, reference in enumerate(stream.remote()):
        np.testing.assert_array_equal(ray.get(reference), large(seed))
    del reference
    goes_back_to(0)


class ArgumentSaver:
    """An actor that calls its own methods."""

    def __init__(self, seed: int, *, offset: float = 0.0) -> None:
        self._seed = seed
        self._offset = offset

    def array(self) -> np.ndarray:
        return large(self._seed) + np.float32(self._offset)

    def twice(self) -> np.ndarray:
        return 2 * self.array()

    def add(self, other: np.ndarray) -> np.ndarray:
        return self.array() + other


class Concurrent:
    async def array(self, seed: int) -> np.ndarray:
        await asyncio.sleep(0)
        return large(seed)

    async def stream(self) -> AsyncIterator[np.ndarray]:
        for seed in range(2):
            yield large(seed)


def test_actors(api: Any) -> None:
    one = api.remote(**on(1))(ArgumentSaver).remote(1)
    other = api.remote(**on(2))(ArgumentSaver).remote(2, offset=1.0)
    np.testing.assert_array_equal(ray.get(one.twice.remote()), 2 * large(1))
    total = ray.get(one.add.remote(other.array.remote()))
    np.testing.assert_array_equal(total, large(1) + (large(2) + np.float32(1)))
    del total
    concurrent = api.remote(Concurrent).remote()
    np.testing.assert_array_equal(ray.get(concurrent.array.remote(5)), large(5))
    for seed, reference in enumerate(concurrent.stream.remote()):
        np.testing.assert_array_equal(ray.get(reference), large(seed))
    del reference

    async def awaited() -> np.ndarray:
        return await concurrent.array.remote(6)

    np.testing.assert_array_equal(asyncio.run(awaited()), large(6))
    goes_back_to(0)


def test_yielded_items_stay_until_their_caller_holds_them(api: Any) -> None:
    # Unless the worker holds the items, Ray releases one in eight before the caller holds it.
    concurrent = api.remote(Concurrent).remote()
    for _ in range(30):
        items = [ray.get(reference) for reference in concurrent.stream.remote()]
        np.testing.assert_array_equal(items[1], large(1))
    del items
    goes_back_to(0)


def test_ready_results_can_be_got(api: Any) -> None:
    @api.remote
    def make(seed: int) -> np.ndarray:
        return large(seed)

    references = [make.remote(seed) for seed in range(4)]
    ready, rest = hoplite_ray.wait(references, num_returns=4, timeout=TIMEOUT)
    assert (ready, rest) == (references, [])
    for seed, got in enumerate(hoplite_ray.get(references, timeout=TIMEOUT)):
        np.testing.assert_array_equal(got, large(seed))


def test_large_arguments(api: Any) -> None:
    @ray.remote(**on(1))
    def total(array: np.ndarray, options: dict[str, np.ndarray]) -> float:
        return float(array[0] + options["bias"][0])

    arguments = (large(1), {"bias": large(2)})
    assert ray.get(total.remote(*arguments)) == large(1)[0] + large(2)[0]
    goes_back_to(0)


def test_ray_stores_values_when_the_store_is_full(api: Any) -> None:
    too_large = np.zeros(100 << 20, np.uint8)
    reference = api.put(too_large)
    assert copies() == 0
    np.testing.assert_array_equal(ray.get(reference), too_large)
