"""Parts of hoplite.ray, without a cluster."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest
from hoplite.errors import LimitReached, NodeUnreachable

pytest.importorskip("ray")
guards_module = pytest.importorskip("hoplite.ray.nodes.guards")
guard_pool = pytest.importorskip("hoplite.ray.nodes.guard_pool")
supervisors = pytest.importorskip("hoplite.ray.nodes.supervisor")


class Nobody:
    """Replaces a node actor and its class."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def fails(*_: object, **__: object) -> None:
    raise RuntimeError("it does not start")


def test_each_reported_failure_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "ray", Nobody())
    monkeypatch.setattr(supervisors.ray, "wait", fails, raising=False)
    monkeypatch.setattr(supervisors, "NodeAffinitySchedulingStrategy", Nobody())
    supervisor = supervisors.Supervisor.__new__(supervisors.Supervisor)
    supervisor._store_size, supervisor._changed = None, threading.Condition()
    supervisor._started, supervisor._failures = {}, {}
    for node in ["alive"] * 10 + ["gone"]:
        supervisor._start(node)
    assert len(supervisor._failures["alive"]) == supervisors.FAILURES_MAX
    supervisor._forget({"alive"})
    assert list(supervisor._failures) == ["alive"]


def test_no_address_is_awaited_while_all_nodes_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = Nobody()
    monkeypatch.setattr(supervisors, "ray", nobody)
    monkeypatch.setattr(supervisors.ray, "wait", lambda refs, **_: ([], refs), raising=False)
    supervisor = supervisors.Supervisor.__new__(supervisors.Supervisor)
    supervisor._stopping = True
    with pytest.raises(NodeUnreachable, match="being stopped"):
        supervisor._address_of(nobody)


def test_a_pool_of_guards_without_a_node_actor_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_pool, "node_actor_of", fails)
    began = time.monotonic()
    with pytest.raises(NodeUnreachable, match="gives no guards"):
        guard_pool.GuardPool("some node").take()
    assert time.monotonic() - began < guard_pool.TIMEOUT / 2


def test_a_refused_deletion_is_repeated_after_a_pause() -> None:
    class Full:
        calls = 0

        def delete(self, ids: list[Any], timeout: float) -> None:
            self.calls += 1
            if self.calls == 3:
                raise NodeUnreachable("that is enough")
            raise LimitReached("too many are under way")

    guards = guards_module.Guards.__new__(guards_module.Guards)
    guards._client, guards._replaced, guards._ended = Full(), {}, queue.SimpleQueue()
    guards._ended.put(bytes(28))
    began = time.monotonic()
    guards._delete_ended()
    assert guards._client.calls == 3
    assert time.monotonic() - began >= 2 * guards_module.RETRY_INTERVAL
