"""Only a task's own thread waits for bytes in `ray.get`."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from ray_cluster import IGNORED

ray = pytest.importorskip("ray")
cpu_release = pytest.importorskip("hoplite.ray.recovery.cpu_release")

pytestmark = IGNORED


def in_a_worker(monkeypatch: pytest.MonkeyPatch, actor_id: ray.ActorID) -> None:
    monkeypatch.setattr(
        cpu_release, "global_worker", SimpleNamespace(mode=ray.WORKER_MODE, actor_id=actor_id)
    )


def test_only_the_own_thread_of_a_task_waits_in_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    # `ObjectRef.future()` unpickles values on the thread that would have to receive the answer.
    in_a_worker(monkeypatch, ray.ActorID.nil())
    found = []
    other = threading.Thread(target=lambda: found.append(cpu_release.holds_cpus()))
    other.start()
    other.join()
    assert found == [False]
    assert cpu_release.holds_cpus()


def test_an_actor_keeps_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_worker(monkeypatch, ray.ActorID.from_random())
    assert not cpu_release.holds_cpus()
