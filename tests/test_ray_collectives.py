"""`reduce`, `allreduce`, `broadcast` and `prefetch` of Ray's references."""

from __future__ import annotations

from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, NODES, TIMEOUT, copies, goes_back_to, on
from ray_objects import LENGTH, Gate

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")

pytestmark = [*IGNORED, pytest.mark.usefixtures("transparent")]


@ray.remote
def make(value: float, length: int = LENGTH) -> np.ndarray:
    return np.full(length, value, np.float32)


@ray.remote
def fail() -> np.ndarray:
    raise ValueError("no gradient here")


@ray.remote(num_cpus=0)
class FilledGate(Gate):
    async def filled(self, value: float) -> np.ndarray:
        await self.passed()
        return np.full(LENGTH, value, np.float32)


def spread(count: int) -> list[ray.ObjectRef]:
    return [make.options(**on(i % NODES)).remote(float(i)) for i in range(count)]


@pytest.mark.parametrize(("op", "expected"), [("sum", 15.0), ("max", 5.0), ("mean", 2.5)])
def test_all_of_them(op: str, expected: float) -> None:
    reduced, unreduced = hoplite_ray.reduce(spread(6), op=op)
    assert unreduced == []
    np.testing.assert_array_equal(ray.get(reduced), np.full(LENGTH, expected, np.float32))
    del reduced
    goes_back_to(0)


@pytest.mark.torch
@pytest.mark.parametrize("length", [8, LENGTH], ids=["small", "large"])
def test_tensors_give_a_tensor(length: int) -> None:
    torch = pytest.importorskip("torch")

    @ray.remote
    def ones() -> Any:
        return torch.ones(length)

    reduced, _ = hoplite_ray.reduce([ones.remote() for _ in range(3)])
    got = ray.get(reduced)
    assert torch.is_tensor(got)
    assert torch.equal(got, torch.full((length,), 3.0))
    del reduced
    goes_back_to(0)


def test_the_result_comes_to_the_callers_node() -> None:
    elsewhere = [make.options(**on(i)).remote(float(i)) for i in (1, 2)]
    ray.wait(elsewhere, num_returns=2, fetch_local=False)
    here = hoplite_ray.client()
    assert here.status().copies == 0
    reduced, _ = hoplite_ray.reduce(elsewhere)
    eventually(lambda: here.status().copies == 1, "nobody got it, and it is here")
    del elsewhere, reduced
    goes_back_to(0)


def test_a_result_is_an_ordinary_reference() -> None:
    @ray.remote
    def first(array: np.ndarray) -> float:
        return float(array[0])

    one, _ = hoplite_ray.reduce(spread(3))
    two, _ = hoplite_ray.reduce(spread(4))
    both, _ = hoplite_ray.reduce([one, two])
    assert ray.get(first.remote(both)) == 9.0
    assert ray.wait([both], timeout=TIMEOUT) == ([both], [])
    del one, two, both
    goes_back_to(0)


def test_the_first_sources_to_arrive() -> None:
    gate = FilledGate.remote()
    late = gate.filled.remote(100.0)
    sources = [late, *spread(4)]
    reduced, unreduced = hoplite_ray.reduce(sources, num_returns=4, timeout=TIMEOUT)
    assert unreduced == [late]
    assert ray.get(reduced)[0] == 6.0
    ray.get(gate.open.remote())
    rest, _ = hoplite_ray.reduce([*unreduced, reduced])
    assert ray.get(rest)[0] == 106.0
    del sources, reduced, rest, late, unreduced
    goes_back_to(0)


def test_failed_sources_are_replaced_by_others() -> None:
    failed = fail.remote()
    reduced, unreduced = hoplite_ray.reduce([failed, *spread(3)], num_returns=3, timeout=TIMEOUT)
    assert unreduced == [failed]
    assert ray.get(reduced)[0] == 3.0
    with pytest.raises(ValueError, match="no gradient here"):
        hoplite_ray.reduce([failed, fail.remote(), *spread(1)], num_returns=2, timeout=TIMEOUT)
    with pytest.raises(ValueError, match="no gradient here"):
        ray.get(hoplite_ray.reduce([failed, *spread(2)])[0])


def test_errors_of_a_reduction_have_the_reason() -> None:
    sources = spread(2)
    with pytest.raises(hoplite.BadArgument, match="twice"):
        hoplite_ray.reduce([sources[0], sources[0]])
    for count in (0, 3):
        with pytest.raises(hoplite.BadArgument, match="num_returns"):
            hoplite_ray.reduce(sources, num_returns=count)
    unequal, _ = hoplite_ray.reduce([sources[0], make.remote(1.0, 2 * LENGTH)])
    with pytest.raises(hoplite.Mismatch):
        ray.get(unequal)


def test_every_call_times_out() -> None:
    gate = FilledGate.remote()
    never = [gate.filled.remote(1.0), gate.filled.remote(2.0)]
    with pytest.raises(ray.exceptions.GetTimeoutError, match="0 of 1"):
        hoplite_ray.reduce(never, num_returns=1, timeout=0.2)
    reduced, _ = hoplite_ray.reduce([*never, make.remote(0.0)], timeout=0.2)
    with pytest.raises(hoplite.TimedOut, match="2 of 3"):
        ray.get(reduced)


def test_small_sources() -> None:
    reduced, _ = hoplite_ray.reduce([make.remote(float(i), 100) for i in range(4)])
    np.testing.assert_array_equal(ray.get(reduced), np.full(100, 6, np.float32))
    del reduced
    goes_back_to(0)


def test_allreduce_brings_the_result_to_the_sources() -> None:
    total = hoplite_ray.allreduce(spread(NODES))
    assert ray.get(total)[0] == 3.0
    eventually(lambda: copies() == NODES, "the sources are gone, the result is everywhere")
    del total
    goes_back_to(0)


def test_broadcast_brings_all_parts_of_a_value() -> None:
    parts = {"a": np.ones(LENGTH), "deeper": [np.zeros(LENGTH), {"b": np.full(LENGTH, 2.0)}]}
    reference = ray.put(parts)
    assert copies() == 3
    ray.get(hoplite_ray.broadcast(reference), timeout=TIMEOUT)
    assert copies() == 3 * NODES
    assert ray.get(reference)["deeper"][1]["b"][-1] == 2.0
    del reference
    goes_back_to(0)


def test_broadcast_and_prefetch() -> None:
    value = np.arange(LENGTH, dtype=np.float64)
    reference = ray.put(value)
    assert copies() == 1
    there = ray.get(hoplite_ray.broadcast(reference), timeout=TIMEOUT)
    assert sorted(there) == sorted(hoplite_ray.nodes().values())
    assert copies() == NODES
    assert ray.get(hoplite_ray.prefetch(reference), timeout=TIMEOUT) in there
    del reference
    goes_back_to(0)


class Doubled:
    """Runs code when it is unpickled, so it cannot be made of handles alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.array = 2 * state["array"]


@pytest.mark.parametrize("put", [lambda value: ray.put(value), hoplite_ray.put], ids=["ray", "hoplite"])
def test_values_with_code_in_their_pickle_are_fetched_too(put: Any) -> None:
    pa = pytest.importorskip("pyarrow")

    @ray.remote(**on(1))
    def make_all() -> list[Any]:
        array = np.arange(LENGTH, dtype=np.float64)
        table = pa.table({"x": array, "y": array})
        return [put({"table": table, "computes": [Doubled(array)], "small": "text"})]

    made = make_all.remote()
    (reference,) = ray.get(made)
    assert copies() == 3
    ray.get(hoplite_ray.prefetch(reference), timeout=TIMEOUT)
    assert copies() == 6
    got, array = ray.get(reference), np.arange(LENGTH, dtype=np.float64)
    assert got["table"].equals(pa.table({"x": array, "y": array}))
    np.testing.assert_array_equal(got["computes"][0].array, 2 * array)
    del reference, got, made
    goes_back_to(0)
