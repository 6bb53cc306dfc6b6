"""Three real Ray nodes on this machine, with Hoplite beside them, for the tests of hoplite.ray."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hoplite
import pytest
from conftest import TIMEOUT, eventually

from lab.systems.ray import ALONE

NODES = 3
STORE_BYTES = 96 << 20

SETTINGS = {
    **ALONE,
    # Workers import the functions of the tests from their files.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
}

#: Warnings that come from Ray: of planned changes, and of sockets and files left to the garbage collector.
IGNORED = [
    pytest.mark.filterwarnings("ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class RayCluster:
    """A Ray cluster, and the status of its Hoplite nodes."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.update(SETTINGS)
        # SIGINT is ignored in the background of a shell, and in all child processes. Ray could then not
        # cancel a task that is getting its arguments ("'Handlers' object is not callable").
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._cluster = Cluster()
        for _ in range(NODES):
            self.add_node()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self) -> Any:
        """Add a node with a new number, which `on` takes."""
        number = len(self._cluster.worker_nodes) + (self._cluster.head_node is not None)
        dashboard = {"include_dashboard": False} if number == 0 else {}
        return self._cluster.add_node(
            num_cpus=2, resources={f"node{number}": 100}, object_store_memory=STORE_BYTES, **dashboard
        )

    def remove_node(self, node: Any, *, killed: bool = False) -> None:
        """Remove a node. `killed`: kill all its processes without telling Ray."""
        if killed:
            raylet = _raylet_of(node)
            for pid in [raylet, *children_of(raylet)]:
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=not killed)

    def raylets(self) -> list[int]:
        """The raylet processes of the nodes. Workers are their children."""
        return [_raylet_of(node) for node in self._cluster.list_all_nodes()]

    def close(self) -> None:
        self._cluster.shutdown()


def _raylet_of(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def on(node: int) -> dict[str, Any]:
    """Options of a task or actor that runs on node number `node`."""
    return {"resources": {f"node{node}": 1}, "num_cpus": 0}


@contextlib.contextmanager
def driver(cluster: RayCluster, *, transparent: bool, threshold: int | None = None) -> Iterator[None]:
    """This process as a driver. At the end all objects that it put must be gone."""
    import hoplite.ray as hoplite_ray

    hoplite_ray.init(
        address=cluster.address,
        transparent=transparent,
        threshold=threshold,
        store_size=STORE_BYTES,
        log_to_driver=False,
        namespace="tests",
    )
    try:
        yield
        goes_back_to(0)
    finally:
        hoplite_ray.shutdown()


def children_of(pid: int) -> list[int]:
    """The child processes of `pid`."""
    processes = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [process for process in processes if _state_and_parent(process)[1] == str(pid)]


def parent_of(pid: int) -> int:
    """The parent process of `pid`."""
    return int(_state_and_parent(pid)[1])


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return _state_and_parent(pid)[0] != "Z"


def _state_and_parent(pid: int) -> tuple[str, str]:
    """State and parent as in /proc. A process that does not exist counts as ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", ""
    return state, parent


def daemon_of(node: int) -> tuple[str, int]:
    """The id of Ray node number `node`, and the process id of its Hoplite node."""
    import hoplite.ray as hoplite_ray
    import ray

    @ray.remote(**on(node))
    def serving() -> tuple[str, str]:
        return ray.get_runtime_context().get_node_id(), hoplite_ray.client().socket

    ray_node, socket = ray.get(serving.remote())
    return ray_node, pid_of(socket)


def pid_of(socket: str) -> int:
    """The `hoplited` whose command line names the socket."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        words = entry.read_bytes().split(b"\0") if is_running(int(entry.parent.name)) else []
        if socket.encode() in words and words[0].endswith(b"hoplited"):
            return int(entry.parent.name)
    raise AssertionError(f"no process serves {socket}")


def sockets() -> list[str]:
    """The sockets of all Hoplite nodes."""
    import hoplite.ray as hoplite_ray
    from hoplite.ray.nodes.lookup import socket_of_node

    return [socket for node in hoplite_ray.nodes() if (socket := socket_of_node(node))]


def copies() -> int:
    """The number of copies on all Hoplite nodes together."""
    held = 0
    for socket in sockets():
        # A node that has just died holds nothing.
        with contextlib.suppress(hoplite.NodeUnreachable), hoplite.connect(socket) as client:
            held += client.status(timeout=TIMEOUT).copies
    return held


def wanted() -> int:
    """The number of objects that calls wait for, on all Hoplite nodes together."""
    waited = 0
    for socket in sockets():
        with contextlib.suppress(hoplite.NodeUnreachable), hoplite.connect(socket) as client:
            gauges = client.status(timeout=TIMEOUT).gauges
            waited += sum(gauge.value for gauge in gauges if gauge.name == "objects wanted")
    return waited


def is_deleted(id: hoplite.ObjectId) -> bool:
    """Whether an object existed and was deleted."""
    import hoplite.ray as hoplite_ray

    try:
        hoplite_ray.client().locations(id, timeout=TIMEOUT)
    except hoplite.ObjectDeleted:
        return True
    return False


def goes_back_to(count: int) -> None:
    """Wait until the Hoplite nodes hold no more than `count` copies."""
    # Expected errors keep their frames in a cycle, and the frames keep references to objects.
    gc.collect()
    eventually(lambda: copies() == count, f"{count} copies are left")
