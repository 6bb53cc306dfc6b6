"""Values that die with workers, Ray nodes or Hoplite nodes are rebuilt or reported lost. No call hangs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, NODES, TIMEOUT, RayCluster, daemon_of, goes_back_to, on, wanted
from ray_objects import LENGTH, Gate, large

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")
handles = pytest.importorskip("hoplite.ray.values.handles")

pytestmark = IGNORED

#: Seconds. A reduction ends sooner if it learns that a source is lost. If it only finds no copy, it ends
#: after 20 s.
KNOWN_SECONDS = 15.0


def large_in_place(seed: int = 0) -> np.ndarray:
    """The array of `large`, made in the store."""
    array: np.ndarray = hoplite_ray.empty(LENGTH, np.float32)
    array[:] = large(seed)
    return array


MODES = ("explicit", "transparent")
ENDS = ("Ray node", "killed Ray node", "Hoplite node")


def in_modes(*in_ci: str) -> pytest.MarkDecorator:
    """In every mode, but in CI only in these, because all of them take minutes."""
    cases = [pytest.param(mode, marks=_thorough_unless(mode in in_ci)) for mode in MODES]
    return pytest.mark.parametrize("api", cases, indirect=True, scope="module")


def in_modes_and_ends(*in_ci: tuple[str, str]) -> pytest.MarkDecorator:
    """In every mode, and for every death of `doomed`."""
    cases = [
        pytest.param(*case, marks=_thorough_unless(case in in_ci)) for case in itertools.product(MODES, ENDS)
    ]
    return pytest.mark.parametrize(("api", "end"), cases, indirect=["api"], scope="module")


def _thorough_unless(in_ci: bool) -> list[pytest.MarkDecorator]:
    return [] if in_ci else [pytest.mark.thorough]


class Doomed:
    """A node whose objects die at `kill`. Another node takes its place."""

    def __init__(self, node: int, address: str, kill: Callable[[], None]) -> None:
        self.there = on(node)
        """Options of tasks that run on the node."""
        self._address = address
        self._kill = kill

    def kill(self, *held: ray.ObjectRef) -> None:
        """Wait until the arrays of `held` are on the node, and nowhere else."""
        ready(*held)
        with handles.kept_as_handles():
            found = ray.get(list(held))
        for handle in found:
            copies = hoplite_ray.client().locations(handle.id, timeout=TIMEOUT).copies
            assert {copy.node for copy in copies} == {self._address}
        self._kill()


@pytest.fixture
def doomed(api: Any, end: str, ray_cluster: RayCluster) -> Iterator[Doomed]:
    if end.endswith("Ray node"):
        nodes = [ray_cluster.add_node()]

        def kill() -> None:
            ray_cluster.remove_node(nodes.pop(), killed=end.startswith("killed"))
            nodes.append(ray_cluster.add_node())

        yield Doomed(NODES, hoplite_ray.nodes()[nodes[0].node_id], kill)
        # Evictable copies would keep the values alive after the node has died.
        goes_back_to(0)
        ray_cluster.remove_node(nodes.pop())
    else:
        before = hoplite_ray.nodes()
        node_id, pid = daemon_of(2)
        yield Doomed(2, before[node_id], lambda: os.kill(pid, 9))
        eventually(lambda: hoplite_ray.nodes()[node_id] != before[node_id], "another takes its place")
        goes_back_to(0)


def ready(*references: Any) -> None:
    done, _ = ray.wait(list(references), num_returns=len(references), timeout=TIMEOUT, fetch_local=False)
    assert len(done) == len(references)


@ray.remote
def total(array: np.ndarray) -> float:
    return float(array.astype(np.float64).sum())


@in_modes_and_ends(("explicit", "Hoplite node"), ("transparent", "Ray node"))
def test_a_lost_result_is_rebuilt_for_all_readers(api: Any, doomed: Doomed) -> None:
    @api.remote
    def make(seed: int) -> np.ndarray:
        return large(seed)

    made = make.options(**doomed.there).remote(7)
    doomed.kill(made)
    totals = [total.options(**on(node)).remote(made) for node in range(NODES)]
    np.testing.assert_array_equal(hoplite_ray.get(made, timeout=TIMEOUT), large(7))
    assert hoplite_ray.get(totals, timeout=TIMEOUT) == [float(large(7).astype(np.float64).sum())] * NODES


@in_modes_and_ends(("transparent", "Hoplite node"))
def test_results_are_rebuilt_from_lost_results(api: Any, doomed: Doomed) -> None:
    @api.remote
    def make(seed: int) -> np.ndarray:
        return large_in_place(seed)

    @api.remote(num_returns=2)
    def combine(
        array: np.ndarray, others: list[Any], *, scale: list[int]
    ) -> tuple[dict[str, np.ndarray], Any]:
        (other,) = ray.get(others)
        return {"sum": array + other, "text": "x", "scaled": array * scale[0]}, array - other

    one, other = (make.options(**doomed.there).remote(seed) for seed in (1, 2))
    scale = [3]
    several, difference = combine.options(**doomed.there).remote(one, [other], scale=scale)
    scale[0] = 0
    ready(several)
    del one, other
    doomed.kill(difference)
    got = hoplite_ray.get(several, timeout=TIMEOUT)
    assert got["text"] == "x"
    np.testing.assert_array_equal(got["sum"], large(1) + large(2))
    np.testing.assert_array_equal(got["scaled"], large(1) * 3)
    np.testing.assert_array_equal(hoplite_ray.get(difference, timeout=TIMEOUT), large(1) - large(2))


@in_modes_and_ends(("explicit", "Hoplite node"))
def test_a_value_without_a_task_is_reported_lost(api: Any, doomed: Doomed) -> None:
    class Holder:
        def make(self) -> np.ndarray:
            return large(1)

        def put(self) -> list[Any]:
            return [api.put(large(2))]

    @api.remote(max_retries=0)
    def make_once() -> np.ndarray:
        return large(3)

    holder = api.remote(Holder).options(**doomed.there).remote()
    result, (put,), once = (
        holder.make.remote(),
        ray.get(holder.put.remote()),
        make_once.options(**doomed.there).remote(),
    )
    lost = [result, put, once]
    doomed.kill(*lost)
    # All at once, because giving up an object takes seconds.
    needing = [total.options(**on(1)).remote(reference) for reference in lost]
    reduced, _ = hoplite_ray.reduce([result, make_once.remote()], timeout=KNOWN_SECONDS)
    for reference in (reduced, *needing, *lost):
        with pytest.raises(ray.exceptions.ObjectLostError):
            hoplite_ray.get(reference, timeout=TIMEOUT)
    eventually(lambda: not wanted(), "nobody waits on for what was given up")


@in_modes_and_ends(("transparent", "Ray node"))
def test_a_reduction_goes_on_when_its_sources_die(api: Any, doomed: Doomed) -> None:
    @api.remote
    def make(seed: int) -> np.ndarray:
        return large(seed)

    gate = api.remote(**on(0))(Gate).remote()
    made = [make.options(**doomed.there).remote(seed) for seed in range(2)]
    reduced, _ = hoplite_ray.reduce([*made, make.options(**on(1)).remote(2), gate.value.remote(3)])
    doomed.kill(*made)
    ray.get(gate.open.remote())
    expected = large(0).astype(np.float64) + large(1) + large(2) + large(3)
    np.testing.assert_allclose(hoplite_ray.get(reduced, timeout=TIMEOUT), expected, atol=1e-5)


@in_modes("transparent")
def test_a_reduction_of_the_first_results_skips_lost_sources(api: Any, ray_cluster: RayCluster) -> None:
    @api.remote(max_retries=0)
    def never() -> np.ndarray:
        import time

        time.sleep(600)
        return large()

    @api.remote
    def make(seed: int) -> np.ndarray:
        return large(seed)

    node = ray_cluster.add_node()
    hoplite_ray.nodes()
    dead = never.options(**on(NODES)).remote()
    ray_cluster.remove_node(node)
    reduced, unreduced = hoplite_ray.reduce(
        [dead, *map(make.remote, range(3))], num_returns=3, timeout=TIMEOUT
    )
    assert unreduced == [dead]
    expected = large(0).astype(np.float64) + large(1) + large(2)
    np.testing.assert_allclose(hoplite_ray.get(reduced, timeout=TIMEOUT), expected, atol=1e-5)
    del reduced
    goes_back_to(0)


@in_modes("transparent")
def test_a_reduction_restarts_after_its_node_dies(api: Any) -> None:
    @api.remote
    def make(seed: int) -> np.ndarray:
        return large(seed)

    gate = api.remote(**on(0))(Gate).remote()
    made = [make.options(**on(node)).remote(node) for node in (1, 2)]
    reduced, _ = hoplite_ray.reduce([*made, gate.value.remote(3)])
    ready(*made)
    node_id, pid = daemon_of(0)
    before = hoplite_ray.nodes()[node_id]
    os.kill(pid, 9)
    eventually(lambda: hoplite_ray.nodes()[node_id] != before, "another takes its place")
    ray.get(gate.open.remote())
    expected = large(1).astype(np.float64) + large(2) + large(3)
    np.testing.assert_allclose(hoplite_ray.get(reduced, timeout=TIMEOUT), expected, atol=1e-5)
    del made, reduced
    goes_back_to(0)


@in_modes("transparent")
def test_a_task_of_a_killed_worker_runs_again(api: Any, tmp_path: Path) -> None:
    @api.remote
    def make(first: Path) -> np.ndarray:
        array = large_in_place(5)
        if not first.exists():
            first.touch()
            ray.put(array)
            array = large_in_place(6)
            os.kill(os.getpid(), 9)
        return array

    np.testing.assert_array_equal(hoplite_ray.get(make.remote(tmp_path / "first"), timeout=TIMEOUT), large(5))
    goes_back_to(0)


@in_modes("transparent")
def test_an_unsent_array_outlives_its_node(api: Any) -> None:
    array = large_in_place(4)
    node_id, pid = daemon_of(0)
    before = hoplite_ray.nodes()[node_id]
    os.kill(pid, 9)
    eventually(lambda: hoplite_ray.nodes()[node_id] != before, "another takes its place")
    reference = api.put(array)
    np.testing.assert_array_equal(hoplite_ray.get(reference, timeout=TIMEOUT), large(4))
    assert hoplite_ray.get(total.options(**on(1)).remote(reference), timeout=TIMEOUT)
    del reference
    goes_back_to(0)
