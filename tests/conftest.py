"""A cluster that most tests share, and ways to wait for things without sleeping blindly."""

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

NODES = 4
STORE_SIZE = "192MiB"

EVENTUALLY_SECONDS = 30.0
"""How long `eventually` keeps looking: far longer than anything takes, even on a busy machine."""

LOOK_EVERY_SECONDS = 0.01


def eventually(holds: Callable[[], object], what: str) -> None:
    """Look until `holds()` is true; fail, saying `what`, if it never becomes so."""
    deadline = time.monotonic() + EVENTUALLY_SECONDS
    while not (last := holds()):
        assert time.monotonic() < deadline, f"never happened: {what} (last look: {last!r})"
        time.sleep(LOOK_EVERY_SECONDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray's tests last: its nodes are busy also when idle, and some of the others measure time."""
    items.sort(key=lambda item: "ray_cluster" in getattr(item, "fixturenames", ()))


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A child process with its output piped; killed at the end if it still runs."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture(scope="session")
def cluster() -> Iterator[hoplite.LocalCluster]:
    """Four nodes for all tests that break nothing."""
    with hoplite.LocalCluster(NODES, store_size=STORE_SIZE) as cluster:
        yield cluster


@pytest.fixture
def clients(cluster: hoplite.LocalCluster) -> Iterator[list[hoplite.Client]]:
    """One client on each node of the shared cluster; afterwards the stores must be empty again."""
    clients = [cluster.connect(i) for i in range(NODES)]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def client(clients: list[hoplite.Client]) -> hoplite.Client:
    return clients[0]


@pytest.fixture
def pair() -> Iterator[hoplite.LocalCluster]:
    """Two nodes of the test's own, to be broken."""
    with hoplite.LocalCluster(2, store_size="64MiB") as cluster:
        yield cluster


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """For calls that wait. Ask for it before `cluster_of`: then a failed test's calls end with its nodes."""
    with ThreadPoolExecutor(32) as threads:
        yield threads


@pytest.fixture
def cluster_of() -> Iterator[Callable[[int], hoplite.LocalCluster]]:
    """Makes clusters of the test's own, to be broken."""
    with contextlib.ExitStack() as stack:
        yield lambda nodes: stack.enter_context(hoplite.LocalCluster(nodes, store_size="320MiB"))


_numbers = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: hoplite.LocalCluster) -> Iterator[Callable[..., str]]:
    """Makes names no other test uses; what bears them is deleted after the test."""
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
    """Three Ray nodes for all tests that break nothing; where Ray is installed."""
    pytest.importorskip("ray")
    # Not above: it uses what this file defines.
    from ray_cluster import RayCluster

    with contextlib.closing(RayCluster()) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["explicit", "transparent"])
def api(request: pytest.FixtureRequest, ray_cluster: RayCluster) -> Iterator[Any]:
    """The module whose `put`, `get` and `remote` the tests call: Ray's own, unchanged, is to do the same."""
    yield from _driver(ray_cluster, request.param)


@pytest.fixture(scope="module")
def explicit(ray_cluster: RayCluster) -> Iterator[Any]:
    """As `api`, in the one mode."""
    yield from _driver(ray_cluster, "explicit")


@pytest.fixture(scope="module")
def transparent(ray_cluster: RayCluster) -> Iterator[Any]:
    """As `api`, in the other mode."""
    yield from _driver(ray_cluster, "transparent")


def _driver(cluster: RayCluster, mode: str) -> Iterator[Any]:
    from ray_cluster import driver

    with driver(cluster, transparent=mode == "transparent"):
        yield importlib.import_module("ray" if mode == "transparent" else "hoplite.ray")
