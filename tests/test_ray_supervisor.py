"""What the supervisor remembers, without a cluster."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("ray")
supervisors = pytest.importorskip("hoplite.ray.supervisor")


class Nobody:
    """In place of a keeper, and of how one is made."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def fails(*_: object, **__: object) -> None:
    raise RuntimeError("it does not start")


def test_failures_are_remembered_as_often_as_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "ray", Nobody())
    monkeypatch.setattr(supervisors.ray, "get", fails, raising=False)
    monkeypatch.setattr(supervisors, "NodeAffinitySchedulingStrategy", Nobody())
    supervisor = supervisors.Supervisor.__new__(supervisors.Supervisor)
    supervisor._store_size, supervisor._changed = None, threading.Condition()
    supervisor._kept, supervisor._failures = {}, {}
    for node in ["alive"] * 10 + ["gone"]:
        supervisor._start(node)
    assert len(supervisor._failures["alive"]) == supervisors.FAILURES_MAX
    supervisor._forget({"alive"})
    assert list(supervisor._failures) == ["alive"]
