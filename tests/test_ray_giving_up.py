"""A lost object is given up: by which process, when and with which reason. Stand-ins replace the cluster."""

from __future__ import annotations

import itertools
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray_cluster import IGNORED

ray = pytest.importorskip("ray")
loss_reports = pytest.importorskip("hoplite.ray.recovery.loss_reports")
rebuilder = pytest.importorskip("hoplite.ray.recovery.rebuilder")

from hoplite.errors import ObjectDeleted  # noqa: E402
from hoplite.ids import ObjectId  # noqa: E402
from hoplite.ray import errors  # noqa: E402
from hoplite.ray.nodes import guards, lookup, supervisor  # noqa: E402
from hoplite.ray.nodes.guards import id_of_hex  # noqa: E402
from hoplite.ray.recovery.arguments import CannotRunAgain  # noqa: E402
from hoplite.ray.recovery.origins import Origin  # noqa: E402
from hoplite.ray.recovery.task_record import Rerun  # noqa: E402

pytestmark = IGNORED


class Store:
    """The used part of Ray's key-value store."""

    def __init__(self) -> None:
        self.words: dict[bytes, bytes] = {}

    def _internal_kv_put(self, key: Any, value: Any, *, overwrite: bool, namespace: str) -> None:
        if overwrite or as_bytes(key) not in self.words:
            self.words[as_bytes(key)] = as_bytes(value)

    def _internal_kv_get(self, key: Any, *, namespace: str) -> bytes | None:
        return self.words.get(as_bytes(key))

    def _internal_kv_list(self, prefix: bytes, *, namespace: str) -> list[bytes]:
        return [key for key in self.words if key.startswith(prefix)]

    def _internal_kv_del(self, key: bytes, *, namespace: str) -> None:
        self.words.pop(key, None)


def as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


class Node:
    """The used part of a client, and the objects of its node."""

    def __init__(self) -> None:
        self.has: set[ObjectId] = set()
        self.deleted: set[ObjectId] = set()

    def locations(self, id: ObjectId, *, timeout: float) -> Any:
        if id in self.deleted:
            raise ObjectDeleted(str(id))
        return SimpleNamespace(copies=[SimpleNamespace(complete=True)] if id in self.has else [])

    def delete(self, ids: list[ObjectId], *, timeout: float) -> None:
        self.deleted.update(ids)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node()
    monkeypatch.setattr(loss_reports, "internal_kv", Store())
    monkeypatch.setattr(rebuilder.connection, "call", lambda use, *_: use(SimpleNamespace(client=node)))
    return node


def a_loss(task: str = "task", part: int = 0) -> Any:
    return loss_reports.Loss(Origin(task, part, "<f8(3,)"), f"{task}{part}")


def seconds_go_by(monkeypatch: pytest.MonkeyPatch, supervising: Any, seconds: float) -> None:
    """Two looks of the supervisor, one after the other."""
    supervising._give_up_losses()
    now = supervisor.time.monotonic() + seconds
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    supervising._give_up_losses()


@pytest.fixture
def supervising() -> Any:
    found = object.__new__(supervisor.Supervisor)
    found._losses, found._entries = {}, {}
    return found


class Task:
    """The part of a task record that recovery reads."""

    def __init__(self, refused: CannotRunAgain | None) -> None:
        self.refused = refused
        self.calls: list[dict[int, str]] = []

    def refusal(self, part: int) -> CannotRunAgain | None:
        return self.refused

    def next_attempt(self, part: int) -> str:
        return "it runs again"

    def run_again(self, parts: dict[int, str], lender: object, remake: object) -> Rerun:
        assert lender is None
        self.calls.append(parts)
        return Rerun(object(), [])


@pytest.fixture
def recovering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rebuilder of a process that has called the tasks in `known`."""
    found = object.__new__(rebuilder._Rebuilder)
    found._name, found._claims, found._rebuilds = "caller", 0, {}
    found._unwanted = set()
    found.known = {}
    monkeypatch.setattr(rebuilder.lineage, "known", found.known.get)
    return found


def test_a_complete_copy_is_not_deleted(node: Node) -> None:
    # The reporter was cut off from the node, or did not know yet of the rebuild.
    there, gone = a_loss("there"), a_loss("gone")
    node.has.add(id_of_hex(there.guard))
    for loss in (there, gone):
        loss_reports.report(loss, certain=True)
    rebuilder.give_up([there, gone], "for a test")
    assert node.deleted == {id_of_hex(gone.guard)}
    assert loss_reports.reason_of(id_of_hex(there.guard)) is None
    assert loss_reports.open_losses() == {}


def test_an_unrebuildable_value_is_kept_without_readers(node: Node, recovering: Any) -> None:
    """Its node may come back."""
    unwanted, wanted = a_loss("unwanted"), a_loss("wanted")
    for loss in (unwanted, wanted):
        loss_reports.report(loss, certain=False)
    recovering._unwanted = {unwanted, wanted}
    loss_reports.report(wanted, certain=True)
    recovering._rebuild_reported()
    recovering._give_up(ValueError("no luck"), [unwanted, wanted])
    assert node.deleted == {id_of_hex(wanted.guard)}
    assert loss_reports.open_losses() == {}
    for loss in (unwanted, wanted):
        assert loss_reports.reason_of(id_of_hex(loss.guard)) == ("OBJECT_LOST", "no luck")


def test_an_error_of_the_rebuild_is_kept() -> None:
    cause = ZeroDivisionError("by nothing")
    for error in (
        ray.exceptions.RayTaskError("function", "its traceback", cause),
        ray.exceptions.RayTaskError("function", "its traceback", cause).as_instanceof_cause(),
    ):
        kept = pickle.loads(errors.pickled(error)).as_instanceof_cause()
        assert isinstance(kept, ray.exceptions.RayTaskError)
        assert isinstance(kept, ZeroDivisionError)
        assert "its traceback" in str(kept)
    assert isinstance(pickle.loads(errors.pickled(ray.exceptions.WorkerCrashedError())), Exception)
    large = ray.exceptions.RayTaskError("function", "its traceback", ValueError("x" * errors.ERROR_BYTES_MAX))
    assert errors.pickled(large) is None


def test_the_supervisor_keeps_values_found_again(
    node: Node, supervising: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = a_loss()
    loss_reports.report(loss, certain=False)
    node.has.add(id_of_hex(loss.guard))
    seconds_go_by(monkeypatch, supervising, 2 * supervisor.CLAIM_TIMEOUT)
    assert node.deleted == set()
    assert loss_reports.open_losses() == {}


def test_the_supervisor_keeps_the_callers_reason(
    node: Node, recovering: Any, supervising: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = a_loss()
    disabled = "OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED"
    recovering.known["task"] = Task(CannotRunAgain("not to be retried", disabled))
    loss_reports.report(loss, certain=False)
    recovering._rebuild_reported()
    assert node.deleted == set()
    seconds_go_by(monkeypatch, supervising, 2 * supervisor.CLAIM_TIMEOUT)
    assert node.deleted == {id_of_hex(loss.guard)}
    assert loss_reports.reason_of(id_of_hex(loss.guard)) == (disabled, "not to be retried")


def test_a_failed_deletion_delays_no_claim(
    node: Node, recovering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovering.known.update(hopeless=Task(CannotRunAgain("no")), other=Task(None))
    loss_reports.report(a_loss("hopeless"), certain=True)
    loss_reports.report(a_loss("other"), certain=True)
    monkeypatch.setattr(node, "delete", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        recovering._rebuild_reported()
    assert loss_reports.open_losses()[a_loss("other")].claimed == b"caller 1"
    assert recovering.known["other"].calls == [{0: ("other0", "<f8(3,)")}]


@pytest.mark.parametrize(
    ("last", "is_lost", "deletes"),
    [
        (("mine", "here", "here:1"), False, True),
        (("another", "there", "there:1"), False, False),
        (("another", "there", "there:0"), False, True),
        (("another", "gone", "gone:1"), False, True),
        (("mine", "here", "here:1"), True, False),
        (None, False, True),
    ],
    ids=[
        "the last",
        "an earlier one",
        "its node actor began anew",
        "its node has gone",
        "lost still",
        "long ago",
    ],
)
def test_only_the_guard_of_the_last_run_deletes(
    node: Node, monkeypatch: pytest.MonkeyPatch, last: Any, is_lost: bool, deletes: bool
) -> None:
    first = a_loss().guard
    monkeypatch.setattr(lookup, "internal_kv", loss_reports.internal_kv)
    alive = [{"NodeID": name, "Alive": name != "gone"} for name in ("here", "there", "gone")]
    monkeypatch.setattr(guards.ray, "nodes", lambda: alive)
    for name in ("here", "there", "gone"):
        lookup.announce(name, f"{name}:1", "socket")
    if last is not None:
        guard, *place = last
        loss_reports.record_guard(loss_reports.Guard(bytes(guard, "ascii").hex(), *place), instead_of=first)
    if is_lost:
        loss_reports.report(a_loss(), certain=True)
    made = object.__new__(guards.Guards)
    made._replaced = {b"mine": first}
    expected = [b"mine", b"plain"] if deletes else [b"plain"]
    assert made._unreferenced([b"mine", b"plain"]) == expected
    assert made._replaced == ({b"mine": first} if deletes else {})


def test_a_value_given_up_is_not_claimed_again(
    node: Node, recovering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot, can = Task(None), Task(None)
    monkeypatch.setattr(cannot, "run_again", lambda *_: 1 / 0)
    recovering.known.update(a=cannot, b=can)
    for name in ("a", "b"):
        loss_reports.report(a_loss(name), certain=True)
    seconds = itertools.count(step=2 * rebuilder.CLAIM_INTERVAL)
    monkeypatch.setattr(rebuilder, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    recovering._rebuild_reported()
    assert node.deleted == {id_of_hex(a_loss("a").guard)}
    assert set(loss_reports.open_losses()) == {a_loss("b")}
    assert can.calls


def test_long_reasons_are_cut(node: Node) -> None:
    id = ObjectId.random()
    loss_reports.record_reason(id, "OBJECT_LOST", "x" * 1_000_000 + " \udcff: the end")
    kind, reason = loss_reports.reason_of(id)
    assert kind == "OBJECT_LOST"
    assert reason.endswith("x \\udcff: the end")
    assert len(reason) < 2 * loss_reports.REASON_CHARS_MAX
