"""Who gives a lost object up, when, and in whose words: without a cluster, on a stand-in for Ray's store."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray_cluster import IGNORED

ray = pytest.importorskip("ray")
losses = pytest.importorskip("hoplite.ray.losses")
recovery = pytest.importorskip("hoplite.ray.recovery")

from hoplite.errors import ObjectDeleted  # noqa: E402
from hoplite.ids import ObjectId  # noqa: E402
from hoplite.ray import supervisor  # noqa: E402
from hoplite.ray.lifetime import id_of_hex  # noqa: E402
from hoplite.ray.origins import Origin  # noqa: E402

pytestmark = IGNORED


class Store:
    """Of Ray's key-value store, what is called."""

    def __init__(self) -> None:
        self.words: dict[bytes, bytes] = {}

    def _internal_kv_put(self, key: bytes, value: bytes, *, overwrite: bool, namespace: str) -> None:
        if overwrite or key not in self.words:
            self.words[key] = value

    def _internal_kv_get(self, key: bytes, *, namespace: str) -> bytes | None:
        return self.words.get(key)

    def _internal_kv_list(self, prefix: bytes, *, namespace: str) -> list[bytes]:
        return [key for key in self.words if key.startswith(prefix)]

    def _internal_kv_del(self, key: bytes, *, namespace: str) -> None:
        self.words.pop(key, None)


class Node:
    """Of a client, what is called; and what its node has."""

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
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node()
    monkeypatch.setattr(losses, "internal_kv", Store())
    monkeypatch.setattr(recovery.connection, "call", lambda use: use(SimpleNamespace(client=node)))
    yield node


def a_loss(task: str = "task", part: int = 0) -> Any:
    return losses.Loss(Origin(task, part), f"{task}{part}")


def seconds_go_by(monkeypatch: pytest.MonkeyPatch, supervising: Any, seconds: float) -> None:
    """A look of the supervisor's now, and one later."""
    supervising._give_up_losses()
    now = supervisor.time.monotonic() + seconds
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now))
    supervising._give_up_losses()


@pytest.fixture
def supervising() -> Any:
    found = object.__new__(supervisor.Supervisor)
    found._losses, found._reasons = {}, {}
    return found


def test_what_is_there_is_not_deleted(node: Node) -> None:
    # Reported by who was cut off from it, or told late that it had been made again.
    there, gone = a_loss("there"), a_loss("gone")
    node.has.add(id_of_hex(there.guard))
    for loss in (there, gone):
        losses.report(loss, certain=True)
    recovery.give_up([there, gone], "for a test")
    assert node.deleted == {id_of_hex(gone.guard)}
    assert losses.reason_of(id_of_hex(there.guard)) is None
    assert losses.losses() == {}


def test_the_supervisor_deletes_nothing_that_has_come_back(
    node: Node, supervising: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = a_loss()
    losses.report(loss, certain=False)
    node.has.add(id_of_hex(loss.guard))
    seconds_go_by(monkeypatch, supervising, 2 * supervisor.CLAIM_TIMEOUT)
    assert node.deleted == set()
    assert losses.losses() == {}
