"""A node at a limit, its own or its host's, names the limit and goes on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import hoplite
import numpy as np
import pytest
from conftest import EVENTUALLY_SECONDS, eventually
from faults import MIB, TIMEOUT
from hoplite.daemon import find_daemon

DESCRIPTORS = 512
"""More than a node needs, and not a usual default of a system."""

FEW_DESCRIPTORS = 64
"""A node uses half of them before the first client connects."""


def with_limit(monkeypatch: pytest.MonkeyPatch, folder: Path, ulimit: str) -> None:
    """Start all further nodes under `ulimit`."""
    daemon = folder / "hoplited"
    daemon.write_text(f'#!/bin/sh\nulimit {ulimit}\nexec "{find_daemon()}" "$@"\n')
    daemon.chmod(0o755)
    monkeypatch.setenv("HOPLITED", str(daemon))


def descriptor_limits(cluster: hoplite.LocalCluster) -> list[str]:
    """The soft and the hard limit of open files of the first node's process."""
    limits = Path(f"/proc/{cluster.pids[0]}/limits").read_text().splitlines()
    (line,) = (line for line in limits if line.startswith("Max open files"))
    return line.split()[3:5]


def test_the_soft_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_limit(monkeypatch, tmp_path, f"-S -n {DESCRIPTORS}")
    with hoplite.LocalCluster(1, store_size="16MiB") as cluster:
        soft, hard = descriptor_limits(cluster)
    assert soft == hard
    assert hard != str(DESCRIPTORS)


def gauge(client: hoplite.Client, name: str) -> hoplite.Gauge:
    (found,) = (gauge for gauge in client.status(timeout=TIMEOUT).gauges if gauge.name == name)
    return found


def test_too_many_clients_are_refused() -> None:
    args = ["--clients-max", "2"]
    with hoplite.LocalCluster(1, store_size="16MiB", daemon_args=args) as cluster:
        first, second = cluster.connect(0), cluster.connect(0)
        with pytest.raises(hoplite.LimitReached, match=r"has 2 clients already.*--clients-max") as caught:
            cluster.connect(0)
        assert caught.value.is_retryable
        clients = gauge(first, "clients")
        assert (clients.value, clients.limit, clients.met) == (2, 2, 1)
        second.close()
        eventually(lambda: gauge(first, "clients").value == 1, "the other client is gone")
        cluster.connect(0).close()


def test_more_than_512_clients(cluster: hoplite.LocalCluster) -> None:
    # Once the 513th client waited for ever for the node's answer.
    clients = [cluster.connect(0) for _ in range(600)]
    assert clients[-1].status(timeout=TIMEOUT).clients >= len(clients)
    for client in clients:
        client.close()


@contextlib.contextmanager
def silent_callers(path: str) -> Iterator[Callable[[], None]]:
    """Makes connections to a node's socket that send nothing. They are closed at the end."""
    with contextlib.ExitStack() as callers:

        def call() -> None:
            caller = callers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            caller.connect(path)

        yield call


def open_descriptors(cluster: hoplite.LocalCluster) -> int:
    return len(os.listdir(f"/proc/{cluster.pids[0]}/fd"))


def test_clients_are_refused_without_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_limit(monkeypatch, tmp_path, f"-n {FEW_DESCRIPTORS}")
    with hoplite.LocalCluster(1, store_size="16MiB") as cluster:
        with silent_callers(cluster.sockets[0]) as call:
            # Each connection takes a descriptor until the node closes it for its silence, seconds later.
            for _ in range(FEW_DESCRIPTORS):
                call()
            eventually(lambda: open_descriptors(cluster) == FEW_DESCRIPTORS, "no descriptor is left")
            with pytest.raises(hoplite.LimitReached, match="no descriptor left"):
                cluster.connect(0)
        eventually(lambda: open_descriptors(cluster) < FEW_DESCRIPTORS // 2, "callers have hung up")
        with cluster.connect(0) as client:
            waiting = gauge(client, "connections that wait for this host's means")
            assert waiting.met >= 1
            assert gauge(client, "clients").limit == FEW_DESCRIPTORS // 4


def test_a_silent_connection_is_closed(cluster: hoplite.LocalCluster) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(EVENTUALLY_SECONDS)
        caller.connect(cluster.sockets[1])
        assert caller.recv(1) == b""


def test_limits_outside_the_directory_have_gauges(clients: list[hoplite.Client]) -> None:
    clients[0].put(np.ones(MIB, np.uint8), "gauged", timeout=TIMEOUT)
    clients[1].get("gauged", timeout=TIMEOUT)
    gauges = [
        {gauge.name: gauge for gauge in client.status(timeout=TIMEOUT).gauges} for client in clients[:2]
    ]
    assert gauges[0]["idle bulk connections"].value >= 1
    assert gauges[1]["bulk connections taken"].value >= 1
    assert gauges[1]["control connections taken"].value >= 1
    for name in (
        "bundles not whole yet",
        "bytes that wait for the slowest client",
        "bytes that wait for the slowest peer",
        "calls of clients that wait",
        "clients",
        "clients whose hello is awaited",
        "idle control connections",
        "messages of peers that wait",
        "peer connections whose hello is awaited",
    ):
        gauge = gauges[0][name]
        assert gauge.value <= gauge.limit > 0, name
        assert gauge.met == 0, name
    clients[0].delete("gauged", timeout=TIMEOUT)
