"""Mistakes of new users raise at once, with an error that says how to correct them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
from ray_cluster import SETTINGS, TIMEOUT


def printed_by(
    program: str, folder: Path, *arguments: str, timeout: float = 2 * TIMEOUT, **settings: str
) -> str:
    """The output of `program` if it succeeds, else its error."""
    path = folder / "program.py"
    path.write_text(program)
    ended = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**os.environ, **SETTINGS, **settings},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return ended.stdout if ended.returncode == 0 else ended.stderr


def test_without_ray(tmp_path: Path) -> None:
    program = "import sys; sys.modules['ray'] = None\nimport hoplite.ray"
    assert "ModuleNotFoundError: hoplite.ray needs the package ray: pip install" in printed_by(
        program, tmp_path
    )


def test_an_old_ray_is_refused(tmp_path: Path) -> None:
    program = "import ray; ray.__version__ = '2.9.3'\nimport hoplite.ray"
    assert "ImportError: hoplite.ray needs Ray 2.60 or later, and this is Ray 2.9.3" in printed_by(
        program, tmp_path
    )


UNCONNECTED = """
import numpy as np, pytest, ray, hoplite, hoplite.ray

array = np.ones(1 << 20)
for call in (
    lambda: hoplite.ray.put(array),
    lambda: hoplite.ray.prefetch([]),
    lambda: hoplite.ray.broadcast(None),
    hoplite.ray.client,
    hoplite.ray.nodes,
):
    with pytest.raises(hoplite.NodeUnreachable, match=r"call hoplite.ray.init\\(\\) first"):
        call()
# Nor has one of them started Ray.
assert not ray.is_initialized()
hoplite.ray.shutdown()
for threshold in ("1MiB", -1, 1e6):
    with pytest.raises(hoplite.BadArgument, match="threshold is bytes"):
        hoplite.ray.init(threshold=threshold)
with pytest.raises(hoplite.BadArgument, match="ray:// is not supported|client"):
    hoplite.ray.init("ray://127.0.0.1:10001")
with pytest.raises(TypeError, match="function or class"):
    hoplite.ray.remote(array)
with pytest.raises(TypeError, match="in place of @ray.remote"):
    hoplite.ray.remote(ray.remote(lambda: 1))
with pytest.raises(TypeError, match="in place of @ray.remote"):
    hoplite.ray.remote(num_cpus=1)(ray.remote(type("A", (), {})))
print("done")
"""


def test_without_a_connection_to_ray(tmp_path: Path) -> None:
    assert printed_by(UNCONNECTED, tmp_path) == "done\n"


CONNECTED = """
import logging, logging.handlers, queue, numpy as np, pytest, ray, hoplite, hoplite.ray

array = np.ones(1 << 20)
options = dict(num_cpus=1, include_dashboard=False, log_to_driver=False)
warnings = queue.SimpleQueue()
logging.getLogger("hoplite").addHandler(logging.handlers.QueueHandler(warnings))

# Ray alone.
ray.init("local", **options)
reference = ray.put(array)
for call in (
    lambda: hoplite.ray.put(array),
    lambda: hoplite.ray.reduce([reference]),
    hoplite.ray.client,
    hoplite.ray.nodes,
    lambda: hoplite.ray.shutdown(stop_nodes=True),
):
    with pytest.raises(hoplite.NodeUnreachable, match=r"no Hoplite nodes: call hoplite.ray.init\\(\\) first"):
        call()
with pytest.raises(hoplite.BadArgument, match="give ray.init its arguments there"):
    hoplite.ray.init(num_cpus=2)
with pytest.raises(hoplite.BadArgument, match=r"ray.init\\(runtime_env=hoplite.ray.runtime_env\\(\\)\\)"):
    hoplite.ray.init(transparent=True)
assert warnings.empty()

# After it: the calls of hoplite.ray.
hoplite.ray.init(store_size="64MiB")
assert "only the calls of hoplite.ray" in warnings.get_nowait().getMessage()
hoplite.ray.init(transparent=False)
assert warnings.empty()
mine = hoplite.ray.put(array)
assert hoplite.ray.client().status().copies == 1
for wrong, words in (
    (mine, "a list, also of one"),
    ([array], "not ndarray"),
    ([], "num_returns is 1 to"),
    ([mine, mine], "twice"),
):
    with pytest.raises(hoplite.BadArgument, match=words):
        hoplite.ray.reduce(wrong)
for call in (
    lambda: hoplite.ray.reduce([mine], op="average"),
    lambda: hoplite.ray.allreduce([mine], order="random"),
):
    with pytest.raises(hoplite.BadArgument, match="average|random"):
        call()
assert ray.get(hoplite.ray.reduce([mine])[0]).sum() == array.sum()
with pytest.raises(hoplite.NodeUnreachable, match="no Ray node that is alive"):
    hoplite.ray.broadcast(mine, ["ab" * 28])
hoplite.ray.shutdown()
assert ray.is_initialized()
hoplite.ray.shutdown()
print("done")
"""

LEAVING = """
import logging, logging.handlers, queue, threading, numpy as np, pytest, ray, hoplite, hoplite.ray

array = np.ones(1 << 20)
options = dict(num_cpus=1, include_dashboard=False, log_to_driver=False)
warnings = queue.SimpleQueue()
double = ray.remote(lambda given: 2 * given)
def somebody_looks_for_losses():
    return any(thread.name == "hoplite-recovery" for thread in threading.enumerate())

logging.getLogger("hoplite").addHandler(logging.handlers.QueueHandler(warnings))

# Ray's shutdown instead of Hoplite's, and then Ray alone again: large values are Ray's, at once.
hoplite.ray.init("local", store_size="64MiB", **options)
assert hoplite.ray.client().status().copies == 0
ray.put(array)
assert ray.get(double.remote(1)) == 2
assert somebody_looks_for_losses()
ray.shutdown()
with pytest.raises(hoplite.NodeUnreachable, match="not connected"):
    hoplite.ray.client()
ray.init("local", **options)
assert ray.get(ray.put(array)).sum() == array.sum()
assert ray.get(ray.remote(lambda given: given.sum()).remote(array)) == array.sum()
assert warnings.empty(), warnings.get_nowait().getMessage()
ray.shutdown()

# And with Hoplite again.
hoplite.ray.init("local", store_size="64MiB", **options)
reference = ray.put(array)
assert hoplite.ray.client().status().copies == 1
assert ray.get(double.remote(1)) == 2
assert somebody_looks_for_losses()
hoplite.ray.shutdown()
assert not ray.is_initialized()
print("done")
"""


def test_on_a_laptop(tmp_path: Path) -> None:
    assert printed_by(CONNECTED, tmp_path) == "done\n"


def test_ray_shutdown_without_hoplites_shutdown(tmp_path: Path) -> None:
    assert printed_by(LEAVING, tmp_path) == "done\n"


STOPPING = """
import numpy as np, ray, hoplite, hoplite.ray

array = np.ones(1 << 20)
ray.init(
    "local", num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=hoplite.ray.runtime_env()
)

@ray.remote
def doubled(array):
    return 2 * array

for time in range(3):
    hoplite.ray.init(store_size="64MiB")
    assert hoplite.ray.client().status().copies == 0
    reference = doubled.remote(ray.put(array))
    assert ray.get(reference).sum() == 2 * array.sum()
    assert hoplite.ray.client().status().copies >= 1
    hoplite.ray.shutdown(stop_nodes=True)
    del reference
print("done")
"""


def test_nodes_are_stopped_and_started_again(tmp_path: Path) -> None:
    assert printed_by(STOPPING, tmp_path) == "done\n"


FAILING = """
import sys, hoplite.ray
hoplite.ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, store_size=sys.argv[1])
"""


def test_a_failed_start_of_a_node_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    for size, settings, words in (("64MiB", {"HOPLITED": missing}, missing), ("large", {}, "'large'")):
        said = printed_by(FAILING, tmp_path, size, **settings)
        _, error, why = said.partition("NodeUnreachable: no Hoplite node starts on Ray node")
        assert error
        assert words in why
