"""Hoplite's nodes start, are supervised, and end with Ray's nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hoplite
import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, NODES, SETTINGS, TIMEOUT, RayCluster, daemon_of, is_running

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")
handles = pytest.importorskip("hoplite.ray.values.handles")
lookup = pytest.importorskip("hoplite.ray.nodes.lookup")

pytestmark = [*IGNORED, pytest.mark.usefixtures("explicit")]

LENGTH = 1 << 20

LAPTOP = """
import numpy as np, ray, hoplite.ray

def hook():
    import os
    os.environ["HOOKED"] = "yes"

hoplite.ray.init(
    "local", num_cpus=2, include_dashboard=False, log_to_driver=False, store_size="64MiB",
    runtime_env={"worker_process_setup_hook": hook, "env_vars": {"MINE": "1"}},
)

@ray.remote
def make():
    import os
    assert os.environ["HOOKED"] == "yes" and os.environ["MINE"] == "1"
    return np.ones(1 << 20)

reference = make.remote()
assert ray.get(reference).sum() == 1 << 20
assert hoplite.ray.client().status().copies == 1
print(hoplite.ray.client().socket)
"""


def test_the_supervisor_dies_with_the_cluster_alone() -> None:
    supervisor = ray.get_actor(lookup.SUPERVISOR, namespace=lookup.NAMESPACE)
    (head,) = (node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
    where = supervisor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    assert ray.get(where, timeout=TIMEOUT) == head


def test_one_node_each_and_they_know_each_other() -> None:
    nodes = hoplite_ray.nodes()
    assert len(nodes) == NODES
    assert set(hoplite_ray.client().status().members) == set(nodes.values())


def test_a_ray_node_joins_and_leaves(ray_cluster: RayCluster) -> None:
    joining = ray_cluster.add_node()
    nodes = hoplite_ray.nodes()
    assert len(nodes) == NODES + 1
    eventually(
        lambda: set(hoplite_ray.client().status().members) == set(nodes.values()), "all know the new one"
    )
    new, pid = daemon_of(NODES)
    ray_cluster.remove_node(joining)
    eventually(lambda: not is_running(pid), "its Hoplite node ends with it")
    eventually(lambda: new not in hoplite_ray.nodes(), "it is forgotten")
    eventually(lambda: len(hoplite_ray.client().status().members) == NODES, "all know that it has gone")


def test_they_run_at_the_priority_of_rays_own_nodes() -> None:
    """Not at the lower priority of Ray's workers, which would slow down the whole host."""
    raises = "import os; os.nice(15); os.setpriority(os.PRIO_PROCESS, 0, 0)"
    if subprocess.run([sys.executable, "-c", raises], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("this user may not raise a priority")
    _, pid = daemon_of(0)
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == here
    assert sum(os.getpriority(os.PRIO_PROCESS, thread) == here for thread in threads) >= 3


def test_a_dead_hoplite_node_is_restarted() -> None:
    before = hoplite_ray.nodes()
    # The node of this process dies, so its client is replaced too.
    ray_node, pid = daemon_of(0)
    os.kill(pid, 9)
    eventually(lambda: hoplite_ray.nodes()[ray_node] != before[ray_node], "another takes its place")
    eventually(
        lambda: set(hoplite_ray.client().status().members) == set(hoplite_ray.nodes().values()),
        "all know the new one, and that the old has gone",
    )


def test_objects_deleted_without_ray() -> None:
    reference = hoplite_ray.put(np.ones(LENGTH))
    with handles.kept_as_handles():
        handle = ray.get(reference)
    hoplite_ray.client().delete(handle.id)
    with pytest.raises(ray.exceptions.ObjectLostError, match="ObjectDeleted"):
        ray.get(reference)


def test_a_laptop(tmp_path: Path) -> None:
    program = tmp_path / "laptop.py"
    program.write_text(LAPTOP)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    socket = done.stdout.split()[-1]
    eventually(lambda: not Path(socket).exists() or not serves(socket), "the node ends with Ray")


def serves(socket: str) -> bool:
    try:
        hoplite.connect(socket, timeout=1.0).close()
    except hoplite.NodeUnreachable:
        return False
    return True
