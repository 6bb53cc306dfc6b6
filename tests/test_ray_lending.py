"""A waiting task lends its resources to the rebuild that it waits for. Stand-ins replace Ray."""

from __future__ import annotations

from typing import Any

import pytest
from ray_cluster import IGNORED, RayCluster, driver
from test_ray_giving_up import Store, a_loss

ray = pytest.importorskip("ray")
loss_reports = pytest.importorskip("hoplite.ray.recovery.loss_reports")
rebuilder = pytest.importorskip("hoplite.ray.recovery.rebuilder")

from hoplite.ray.recovery import calls  # noqa: E402
from hoplite.ray.recovery.resource_lending import Lender, lender_here, lent_options  # noqa: E402
from hoplite.ray.recovery.task_record import Rerun  # noqa: E402
from ray.util.scheduling_strategies import (  # noqa: E402
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

pytestmark = IGNORED

NODE = "0a" * 28


def a_lender(task: str = "waits", **resources: float) -> Lender:
    return Lender(task, NODE, resources, "2,3")


@pytest.mark.parametrize(
    "options",
    [
        {"resources": {"disk": 1}},
        {"num_gpus": 2, "num_cpus": 1},
        {"memory": 500, "scheduling_strategy": "SPREAD"},
        {"accelerator_type": "A100", "num_gpus": 1},
        {"num_gpus": 1, "scheduling_strategy": NodeAffinitySchedulingStrategy(NODE, soft=False)},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_task_runs_on_the_resources_of_its_waiter(options: dict[str, Any]) -> None:
    lender = a_lender(disk=1, GPU=2, memory=1000, **{"accelerator_type:A100": 0.001})
    found, environment = lent_options({**options, "max_retries": 3}, lender)
    assert found["scheduling_strategy"].node_id == NODE
    assert not found["scheduling_strategy"].soft
    assert not any(found[name] for name in ("resources", "num_gpus", "memory", "accelerator_type"))
    assert (found["max_retries"], found.get("num_cpus")) == (3, options.get("num_cpus"))
    assert environment == ({"CUDA_VISIBLE_DEVICES": "2,3"} if "num_gpus" in options else {})


def test_a_starting_actor_lends_its_cpus() -> None:
    found, _ = lent_options({"resources": {"disk": 1}, "num_cpus": 1}, a_lender(disk=1, CPU=1))
    assert found["num_cpus"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"num_cpus": 2},
        {"resources": {"disk": 2}},
        {"resources": {"disk": 1, "other": 1}},
        {"num_gpus": 1, "scheduling_strategy": NodeAffinitySchedulingStrategy("0b" * 28, soft=False)},
        {"num_gpus": 1, "scheduling_strategy": PlacementGroupSchedulingStrategy(None)},
        {"num_gpus": 1, "label_selector": {"zone": "here"}},
    ],
    ids=["processors", "more", "others", "elsewhere", "group", "labels"],
)
def test_other_requirements_get_no_lender(options: dict[str, Any]) -> None:
    assert lent_options(options, a_lender(disk=1, GPU=1)) is None


class Task:
    """The part of a task record that recovery reads."""

    refused = None

    def __init__(self) -> None:
        self.lenders: list[Lender | None] = []
        self.taken_back: list[Call] = []

    def refusal(self, part: int) -> None:
        return None

    def next_attempt(self, part: int) -> str:
        return "it runs again"

    def can_use(self, lender: Lender) -> bool:
        return "disk" in lender.resources

    def run_again(self, parts: dict[int, str], lender: Lender | None, remake: object) -> Rerun:
        self.lenders.append(lender)
        return Rerun(Call(f"call {len(self.lenders)}"), [])

    def take_back(self, call: Call) -> None:
        self.taken_back.append(call)


class Call(str):
    def task_id(self) -> Any:
        return self

    def hex(self) -> str:
        return str(self)


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    found: list[Call] = []
    monkeypatch.setattr(rebuilder.ray, "cancel", lambda call, recursive: found.append(call))
    return found


@pytest.fixture
def recovering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rebuilder of a process that has called the tasks "first" and "second"."""
    monkeypatch.setattr(loss_reports, "internal_kv", Store())
    found = object.__new__(rebuilder._Rebuilder)
    found._name, found._claims, found._rebuilds = "caller", 0, {}
    found._unwanted = set()
    found._failed_lenders = set()
    found.known = {"first": Task(), "second": Task()}
    monkeypatch.setattr(rebuilder.lineage, "known", found.known.get)
    return found


def test_a_waiter_lends_to_a_rebuild(recovering: Any, cancelled: list[Call]) -> None:
    loss_reports.report(a_loss("first"), certain=True, lender=a_lender(disk=1))
    for _ in range(3):
        recovering._rebuild_reported()
    assert recovering.known["first"].lenders == [a_lender(disk=1)]
    assert cancelled == []


def test_a_later_waiter_lends_to_a_queued_rebuild(recovering: Any, cancelled: list[Call]) -> None:
    task = recovering.known["first"]
    loss_reports.report(a_loss("first"), certain=True)
    recovering._rebuild_reported()
    for lender in (a_lender(memory=1), a_lender(disk=1), a_lender("another", disk=1)):
        loss_reports.report(a_loss("first"), certain=True, lender=lender)
        recovering._rebuild_reported()
    assert task.lenders == [None, a_lender(disk=1)]
    assert cancelled == task.taken_back == ["call 1"]
    assert list(recovering._rebuilds) == ["call 2"]


def test_a_running_rebuild_takes_no_lender(recovering: Any, cancelled: list[Call]) -> None:
    loss_reports.report(a_loss("first"), certain=True)
    recovering._rebuild_reported()
    loss_reports.record_guard(loss_reports.Guard("new", "node", "address"), instead_of=a_loss("first").guard)
    loss_reports.report(a_loss("first"), certain=True, lender=a_lender(disk=1))
    recovering._rebuild_reported()
    assert (recovering.known["first"].lenders, cancelled) == ([None], [])


@pytest.mark.usefixtures("cancelled")
def test_a_borrower_lends_its_resources_on(recovering: Any) -> None:
    loss_reports.report(a_loss("first"), certain=True, lender=a_lender(disk=1))
    recovering._rebuild_reported()
    # The borrower has no resources of its own.
    loss_reports.report(a_loss("second"), certain=True, lender=a_lender("call 1"))
    recovering._rebuild_reported()
    assert recovering.known["second"].lenders == [a_lender(disk=1)]


@pytest.mark.usefixtures("cancelled")
def test_a_lender_on_a_dead_node_is_forgotten(recovering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = recovering.known["first"]
    loss_reports.report(a_loss("first"), certain=True, lender=a_lender(disk=1))
    recovering._rebuild_reported()

    def fail(call: Call) -> None:
        raise ray.exceptions.TaskUnschedulableError("no such node")

    monkeypatch.setattr(rebuilder.ray, "get", fail)
    monkeypatch.setattr(rebuilder.ray, "wait", lambda calls, **_: (calls, []))
    recovering._collect_finished()
    recovering._rebuild_reported()
    assert task.taken_back == ["call 1"]
    assert task.lenders == [a_lender(disk=1), None]
    assert a_loss("first") in loss_reports.open_losses()


class Probe:
    """Unpickles to whether the unpickling task would lend its resources."""

    def __reduce__(self) -> tuple[Any, ...]:
        return would_lend, ()


def would_lend() -> bool:
    return lender_here() is not None


class Asking:
    def __init__(self, probe: bool) -> None:
        self._began = probe

    def began(self) -> bool:
        return self._began

    def gets(self, probe: bool, probes: list[ray.ObjectRef]) -> list[bool]:
        return [probe, ray.get(probes[0])]


@pytest.mark.parametrize("transparent", [False, True])
def test_only_waits_before_the_function_lend(ray_cluster: RayCluster, transparent: bool) -> None:
    with driver(ray_cluster, transparent=transparent):
        probe = ray.put(Probe())
        task = ray.remote(num_cpus=0)(lambda probe, probes: [probe, ray.get(probes[0])])
        assert ray.get(task.remote(probe, [probe])) == [True, False]
        actor = ray.remote(num_cpus=0)(Asking).remote(probe)
        assert ray.get(actor.began.remote())
        assert ray.get(actor.gets.remote(probe, [probe])) == [False, False]
        assert not ray.get(probe), "a driver holds nothing"


def test_a_rebuild_makes_its_guards_before_the_function_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(calls, "_new_guards", lambda *_: done.append("guards"))
    monkeypatch.setattr(calls, "_put_parts", lambda *_: done.append("put"))

    def function(**named: int) -> None:
        done.append(f"function of {', '.join(named)}")

    theirs = {"function": 1, "environment": 2, "outputs": 3, "parts": 4}
    calls._rebuild(function, {}, 1, {}, **theirs)
    assert done == ["guards", "function of function, environment, outputs, parts", "put"]
    actor = type("Actor", (), {"method": staticmethod(function)})
    calls._rebuild_method(actor, "method", 1, {}, actor=1, name=2)
    assert done[3:] == ["guards", "function of actor, name", "put"]
