"""The limits and errors of `ray.get(timeout=)`, without a cluster."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from ray_cluster import IGNORED

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")

from hoplite.errors import NodeUnreachable, TimedOut  # noqa: E402
from hoplite.ids import ObjectId  # noqa: E402
from hoplite.ray import hooks  # noqa: E402
from hoplite.ray.errors import ObjectFetchTimedOutError  # noqa: E402
from hoplite.ray.nodes import connection  # noqa: E402
from hoplite.ray.recovery import cpu_release  # noqa: E402
from hoplite.ray.values import handles  # noqa: E402
from hoplite.ray.values.forms import Form  # noqa: E402
from hoplite.timeouts import Deadline  # noqa: E402

pytestmark = IGNORED


def raised_by(kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """The exception of a get without time left whose value is `error`."""

    def get(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "get", get)
    explicit = kind == "explicit"
    with pytest.raises(ray.exceptions.RayError) as found:
        hoplite_ray.get([], timeout=0) if explicit else hooks._in_time(get)(None, [], 0)
    return found.value


@pytest.mark.parametrize("kind", ["explicit", "transparent"])
def test_a_timeout_inside_a_task_is_the_tasks_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ObjectFetchTimedOutError("00", "its bytes did not come")
    assert isinstance(raised_by(kind, own, monkeypatch), ray.exceptions.GetTimeoutError)
    address = dict(proctitle="task", pid=1, ip="127.0.0.1")
    of_task = ray.exceptions.RayTaskError("task", "traceback", own, **address).as_instanceof_cause()
    assert raised_by(kind, of_task, monkeypatch) is of_task


@pytest.fixture
def no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if this Ray node had no Hoplite node and no node actor."""
    monkeypatch.setattr(connection, "require_connection", lambda: None)
    monkeypatch.setattr(connection, "this_process", lambda: ("session", b"process"))
    monkeypatch.setattr(connection, "socket_of_node", lambda _: None)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))


@pytest.mark.usefixtures("no_node")
def test_a_deadline_bounds_the_wait_for_a_node() -> None:
    reference = ray.ObjectRef(os.urandom(28))
    with handles.loading_until(Deadline(0.2)), pytest.raises(TimedOut):
        handles.Handle(reference, Form.ARRAY, None).value()


@pytest.mark.usefixtures("no_node")
def test_a_deadline_bounds_the_wait_for_a_node_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    def node_actor_of(node: str, timeout: float) -> None:
        raise NodeUnreachable(f"none within {timeout} s")

    monkeypatch.setattr(cpu_release, "node_actor_of", node_actor_of)
    with pytest.raises(NodeUnreachable, match=r"none within 0\.0 s"):
        cpu_release.wait_until_available(ObjectId.random(), Deadline(0))
