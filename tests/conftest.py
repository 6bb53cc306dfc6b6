"""A cluster that most tests share, and helpers that wait for a condition."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import hoplite
import numpy as np
import pytest

if TYPE_CHECKING:
    from ray_cluster import RayCluster

MIB = 1 << 20

NODES = 4
STORE_SIZE = "192MiB"

TIMEOUT = 60.0
"""Time-out of calls in seconds. None takes nearly as long, unless it hangs."""

EVENTUALLY_SECONDS = 30.0
"""Time-out of `eventually`. It is far longer than any condition takes, even on a busy machine."""

LOOK_EVERY_SECONDS = 0.01

Clients = list[hoplite.Client]
ClusterOf = Callable[[int], hoplite.LocalCluster]
Names = Callable[..., str]
Threads = ThreadPoolExecutor


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until `holds()` is true. If it does not become true, fail with `what` in the message."""
    deadline = time.monotonic() + EVENTUALLY_SECONDS
    while not (last := holds()):
        assert time.monotonic() < deadline, f"never happened: {what} (last look: {last!r})"
        time.sleep(LOOK_EVERY_SECONDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run Ray's tests last. Idle Ray nodes use the processor, and some of the other tests measure time."""
    items.sort(key=lambda item: "ray_cluster" in getattr(item, "fixturenames", ()))


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child process with its output piped. It is killed at the end if it still runs."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture(scope="session")
def cluster() -> Iterator[hoplite.LocalCluster]:
    """Four nodes for all tests without failures."""
    with hoplite.LocalCluster(NODES, store_size=STORE_SIZE) as cluster:
        yield cluster


@pytest.fixture
def clients(cluster: hoplite.LocalCluster) -> Iterator[Clients]:
    """One client on each node of the shared cluster. After the test the stores must be empty again."""
    clients = [cluster.connect(i) for i in range(NODES)]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def client(clients: Clients) -> hoplite.Client:
    return clients[0]


@pytest.fixture
def pair() -> Iterator[hoplite.LocalCluster]:
    """Two nodes of the test's own, for tests with failures."""
    with hoplite.LocalCluster(2, store_size="64MiB") as cluster:
        yield cluster


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Threads for calls that wait. Request it before `cluster_of`: failed tests' calls end with the nodes."""
    with ThreadPoolExecutor(32) as threads:
        yield threads


@pytest.fixture
def cluster_of() -> Iterator[Callable[[int], hoplite.LocalCluster]]:
    """Makes clusters of the test's own, for tests with failures."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes: stack.enter_context(hoplite.LocalCluster(nodes, store_size="320MiB"))


_numbers = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: hoplite.LocalCluster) -> Iterator[Names]:
    """Makes names that no other test uses. Objects with these names are deleted after the test."""
    made: list[str] = []

    def make(label: object = "object") -> str:
        made.append(f"{request.node.name} {label} {next(_numbers)}")
        return made[-1]

    yield make
    with cluster.connect(0) as client:
        if made:
            client.delete(made, timeout=EVENTUALLY_SECONDS)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20210823)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Three Ray nodes for all tests without failures, if Ray is installed."""
    pytest.importorskip("ray")
    # Imported here, because it uses definitions of this file.
    from ray_cluster import RayCluster

    with contextlib.closing(RayCluster()) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["explicit", "transparent"])
def api(request: pytest.FixtureRequest, ray_cluster: RayCluster) -> Iterator[Any]:
    """The module whose `put`, `get` and `remote` the tests call: `hoplite.ray`, or Ray's own, unchanged."""
    yield from _driver(ray_cluster, request.param)


@pytest.fixture(scope="module")
def explicit(ray_cluster: RayCluster) -> Iterator[Any]:
    """As `api`, in the explicit mode."""
    yield from _driver(ray_cluster, "explicit")


@pytest.fixture(scope="module")
def transparent(ray_cluster: RayCluster) -> Iterator[Any]:
    """As `api`, in the transparent mode."""
    yield from _driver(ray_cluster, "transparent")


def _driver(cluster: RayCluster, mode: str) -> Iterator[Any]:
    from ray_cluster import driver

    with driver(cluster, transparent=mode == "transparent"):
        yield importlib.import_module("ray" if mode == "transparent" else "hoplite.ray")
