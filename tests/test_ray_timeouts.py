"""What `ray.get(timeout=)` bounds, and what it raises; without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from ray_cluster import IGNORED

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")

from hoplite.ray import hooks  # noqa: E402
from hoplite.ray.errors import ObjectFetchTimedOutError  # noqa: E402

pytestmark = IGNORED


def raised_by(kind: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """By a get with no time left, which finds `error`."""

    def get(*_: Any, **__: Any) -> None:
        raise error

    with pytest.raises(ray.exceptions.RayError) as found:
        if kind == "explicit":
            monkeypatch.setattr(ray, "get", get)
            hoplite_ray.get([], timeout=0)
        else:
            hooks._in_time(get)(None, [], 0)
    return found.value


@pytest.mark.parametrize("kind", ["explicit", "transparent"])
def test_a_task_that_failed_by_a_timeout_is_not_waited_for(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ObjectFetchTimedOutError("00", "its bytes did not come")
    assert isinstance(raised_by(kind, own, monkeypatch), ray.exceptions.GetTimeoutError)
    address = dict(proctitle="task", pid=1, ip="127.0.0.1")
    of_task = ray.exceptions.RayTaskError("task", "traceback", own, **address).as_instanceof_cause()
    assert raised_by(kind, of_task, monkeypatch) is of_task
