"""A process records the tasks that it has called: enough to rebuild their results, and no more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, RayCluster, driver

ray = pytest.importorskip("ray")
lineage = pytest.importorskip("hoplite.ray.recovery.lineage")
rebuilder = pytest.importorskip("hoplite.ray.recovery.rebuilder")

from hoplite.ray.recovery.arguments import BYTES_MAX, ArgumentSaver, CannotRunAgain, Reference, restored  # noqa: E402
from hoplite.ray.settings import LineageSettings, lineage_settings_of  # noqa: E402

pytestmark = IGNORED


class Function:
    """A function that can be called again and records its arguments."""

    def __init__(self) -> None:
        self.called: list[tuple[list[Any], dict[str, Any]]] = []
        self.retries: list[int] = []

    def call(self, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]) -> ray.ObjectRef:
        self.called.append((args, kwargs))
        return a_reference()

    def call_to_rebuild(
        self, args: Any, kwargs: Any, options: Any, retries: int, lender: object
    ) -> ray.ObjectRef:
        self.retries.append(retries)
        return self.call(args, kwargs, options)


def a_reference() -> ray.ObjectRef:
    """A reference like that of a task's first result. Ray does not know it."""
    return ray.ObjectRef(os.urandom(24) + (1).to_bytes(4, "little"))


def name_of(reference: ray.ObjectRef) -> str:
    return str(reference.task_id().hex())


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Act as if this process were not connected to Ray."""
    monkeypatch.setattr(lineage, "global_worker", SimpleNamespace(current_task_id=None))
    lineage.forget_all()
    yield
    lineage.forget_all()


@pytest.mark.usefixtures("nothing_known")
def test_arguments_are_kept_as_they_were() -> None:
    function, result = Function(), a_reference()
    args = (1, "text", b"bytes", [2, [3]], {"four": [4]}, {5}, list(range(100)))
    saved = (1, "text", b"bytes", [2, [3]], {"four": [4]}, {5}, list(range(100)))
    lineage.record(function, -1, args, {"six": [6]}, {}, result)
    args[3].append(0)
    args[4]["four"].append(0)
    args[5].add(0)
    args[6].append(0)
    lineage.known(name_of(result)).call_again(lineage.remade)
    assert function.called == [(list(saved), {"six": [6]})]


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize(
    ("args", "retries"),
    [
        ((1,), 0),
        ((bytes(BYTES_MAX + 1),), -1),
        (([bytearray(BYTES_MAX + 1)],), -1),
        (({"deep": [["x" * (BYTES_MAX + 1)]]},), -1),
        ((np.zeros(BYTES_MAX + 1, np.uint8),), -1),
    ],
    ids=["not to be retried", "bytes", "pickled", "nested", "array"],
)
def test_a_task_that_cannot_run_again_has_a_reason(args: tuple[Any, ...], retries: int) -> None:
    function, result = Function(), a_reference()
    lineage.record(function, retries, args, {}, {}, result)
    with pytest.raises(CannotRunAgain, match=r"not to be retried|argument has more than 102400 bytes"):
        lineage.run_again(lineage.known(name_of(result)), {0: "guard"})
    assert function.called == []


@pytest.mark.usefixtures("nothing_known")
def test_rebuilds_of_each_value_count_against_the_tasks_retries() -> None:
    function, result = Function(), a_reference()
    lineage.record(function, 2, (1,), {}, {}, result)
    task = lineage.known(name_of(result))
    # A reader finds both values lost, one after the other, twice.
    calls = [lineage.run_again(task, {part: "guard"}) for _ in range(2) for part in range(5)]
    assert function.retries == [1] * 5 + [0] * 5
    # With the guard of an earlier run, its node actor would delete the later rebuild.
    assert task.again == {part: [calls[part], calls[5 + part]] for part in range(5)}
    with pytest.raises(CannotRunAgain) as refused:
        lineage.run_again(task, {5: "guard", 0: "guard"})
    assert refused.value.kind == "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED"
    lineage.run_again(task, {5: "guard"})


@pytest.mark.usefixtures("nothing_known")
def test_a_task_without_retries_rebuilds_no_argument() -> None:
    maker, argument = Function(), a_reference()
    lineage.record(maker, -1, (), {}, {}, argument)
    result = a_reference()
    lineage.record(Function(), 1, (argument,), {}, {}, result)
    task = lineage.known(name_of(result))
    task.again = {0: [result]}
    with pytest.raises(CannotRunAgain):
        lineage.run_again(task, {0: "guard"})
    assert maker.called == []


@pytest.mark.usefixtures("nothing_known")
def test_a_shared_argument_is_rebuilt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite.ray.recovery.arguments.reference_counts", dict)
    make, use, argument, results = Function(), Function(), a_reference(), [a_reference(), a_reference()]
    lineage.record(make, -1, (), {}, {}, argument)
    for result in results:
        lineage.record(use, -1, (argument,), {}, {}, result)
    for times in (1, 2):
        for result in results:
            lineage.run_again(lineage.known(name_of(result)), {0: "a guard"})
        taken = [args[-1] for args, _ in use.called[-2:]]
        assert (len(make.called), taken[0]) == (times, taken[1])
        lineage.drop_remade()


@pytest.mark.usefixtures("nothing_known")
def test_the_lineage_is_bounded() -> None:
    lineage.limit(LineageSettings(True, 10 * (lineage.TASK_BYTES + 100)))
    results = [a_reference() for _ in range(30)]
    for result in results:
        lineage.record(Function(), -1, (bytes(100),), {}, {}, result)
        # A rebuilt value keeps its task, so the first one stays.
        lineage.known(name_of(results[0])).again = {0: [result]}
    evicted = [lineage.known(name_of(result)).refused is not None for result in results]
    assert evicted == [False] + [True] * 20 + [False] * 9
    with pytest.raises(CannotRunAgain) as refused:
        lineage.known(name_of(results[1])).call_again(lineage.remade)
    assert refused.value.kind == "OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED"


@pytest.mark.usefixtures("nothing_known")
def test_no_lineage_without_rays_lineage() -> None:
    before, after = a_reference(), a_reference()
    lineage.record(Function(), -1, (bytes(100),), {}, {}, before)
    lineage.limit(LineageSettings(False, 1 << 30))
    lineage.record(Function(), -1, (bytes(100),), {}, {}, after)
    for result in (before, after):
        with pytest.raises(CannotRunAgain) as refused:
            lineage.known(name_of(result)).call_again(lineage.remade)
        assert refused.value.kind == "OBJECT_UNRECONSTRUCTABLE_LINEAGE_DISABLED"


def test_rays_settings_of_lineage_apply() -> None:
    assert lineage_settings_of({}, {}) == (True, 1 << 30)
    environment = {"RAY_lineage_pinning_enabled": "0", "RAY_max_lineage_bytes": "5"}
    assert lineage_settings_of({}, environment) == (False, 5)
    config = {"lineage_pinning_enabled": True, "max_lineage_bytes": 7}
    assert lineage_settings_of(config, environment) == (True, 7)
    assert lineage_settings_of({"lineage_pinning_enabled": False}, {}).is_enabled is False


def forget(name: str) -> None:
    lineage._table._refuse(name, CannotRunAgain("forgotten"))


class Forgetting:
    """An argument. While it is rebuilt, its task is forgotten, as when the lineage is full."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return forget, (self._name,)


@pytest.mark.usefixtures("nothing_known")
def test_a_task_forgotten_meanwhile_runs_with_all_arguments() -> None:
    function, result = Function(), a_reference()
    lineage.record(function, -1, (Forgetting(name_of(result)),), {"six": 6}, {}, result)
    lineage.known(name_of(result)).call_again(lineage.remade)
    assert function.called == [([None], {"six": 6})]


class Holder:
    def hold(self, references: list[Any]) -> None:
        self._held = references


def test_a_task_is_forgotten_with_its_results(ray_cluster: RayCluster) -> None:
    with driver(ray_cluster, transparent=True):
        task = ray.remote(num_cpus=0, num_returns=2)(lambda: (1, 2))
        holder = ray.remote(num_cpus=0)(Holder).remote()
        results = [task.remote() for _ in range(100)]
        names = [name_of(first) for first, _ in results]
        (_, held), (_, borrowed) = results[0], results[1]
        ray.get(holder.hold.remote([borrowed]))
        ray.get([result for both in results for result in both])
        assert all(map(lineage.known, names))
        del results, borrowed, _
        eventually(lambda: not any(map(lineage.known, names[2:])), "tasks are forgotten")
        assert lineage.known(names[0])
        assert lineage.known(names[1])
        ray.get(holder.hold.remote([]))
        eventually(lambda: not lineage.known(names[1]), "nobody borrows it any more")
        assert lineage.known(names[0])
        del held
        eventually(lambda: not lineage.known(names[0]), "the last has gone")


def what_stays_of(argument: ray.ObjectRef) -> list[bool]:
    """For a task that returns it, one that returns a small value, and one that fails."""
    same = ray.remote(num_cpus=0)(lambda value: value)
    length = ray.remote(num_cpus=0)(lambda value: len(value))
    fail = ray.remote(num_cpus=0)(lambda value: value / "text")
    results = [task.remote(argument) for task in (same, length, fail)]
    known = [lineage.known(name_of(result)) for result in results]
    eventually(lambda: all(task.is_large is not None for task in known), "results are looked at")
    return [argument in task.pinned for task in known]


class Maker:
    def make(self) -> np.ndarray[Any, Any]:
        return np.zeros(1 << 20)


def what_stays() -> list[list[bool]]:
    """References to put values, and to results of tasks without retries."""
    make = ray.remote(num_cpus=0)(lambda: np.zeros(1 << 20))
    maker = ray.remote(num_cpus=0)(Maker).remote()
    once = [ray.put(np.zeros(1 << 20)), make.options(max_retries=0).remote(), maker.make.remote()]
    return [what_stays_of(argument) for argument in once]


def what_is_pinned() -> list[ray.ObjectRef]:
    """By a task whose argument can be rebuilt."""
    make = ray.remote(num_cpus=0)(lambda: np.zeros(1 << 20))
    length = ray.remote(num_cpus=0)(lambda value: len(value))
    result = length.remote(make.remote())
    return list(lineage.known(name_of(result)).pinned)


def what_stays_in_a_chain() -> bool:
    """A put value at the start of a chain of tasks. Only the end of the chain is referenced."""
    same = ray.remote(num_cpus=0)(lambda value: value)
    between = same.remote(ray.put(np.zeros(1 << 20)))
    name = name_of(between)
    end = same.remote(between)
    del between
    task = lineage.known(name)
    eventually(lambda: not lineage.known(name), "the middle is forgotten")
    assert lineage.known(name_of(end))
    return len(task.pinned) == 1


def what_stays_beside_a_small_result() -> bool:
    """A put value whose task has two results. A pending task takes the large one."""

    def two(value: Any) -> tuple[Any, int]:
        return value, 1

    def slow(value: Any) -> None:
        time.sleep(2.5 * rebuilder.LOOK_INTERVAL)

    large, small = ray.remote(num_cpus=0, num_returns=2)(two).remote(ray.put(np.zeros(1 << 20)))
    taker = ray.remote(num_cpus=0)(slow).remote(large)
    task = lineage.known(name_of(large))
    del large
    ray.get([taker, small])
    return len(task.pinned) == 1


def test_put_values_stay_for_tasks_that_may_run_again(ray_cluster: RayCluster) -> None:
    with driver(ray_cluster, transparent=True):
        assert what_stays_in_a_chain()
        assert what_stays_beside_a_small_result()


def test_values_without_a_task_stay_for_rebuilds(ray_cluster: RayCluster) -> None:
    with driver(ray_cluster, transparent=True):
        assert what_stays() == [[True, False, False]] * 3
        assert what_is_pinned() == []


def test_a_present_argument_is_not_rebuilt(ray_cluster: RayCluster) -> None:
    made: list[Reference] = []

    def remake(reference: Reference) -> ray.ObjectRef:
        made.append(reference)
        return ray.put("made")

    with driver(ray_cluster, transparent=False):
        there, gone = ray.put("there"), ray.put("gone")
        saved = ArgumentSaver(lambda reference: Reference(reference.binary(), None), print).saved(
            [there, [gone]]
        )
        lost = gone.binary()
        del gone
        first, (second,) = restored(saved, remake)
        assert ray.get([first, second]) == ["there", "made"]
        assert [reference.binary for reference in made] == [lost]
