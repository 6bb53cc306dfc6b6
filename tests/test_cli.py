"""The command line, and the addresses that `connect` takes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hoplite
import pytest
from conftest import process
from hoplite.addresses import default_socket, socket_of
from hoplite.cli import main

HOPLITE = [sys.executable, "-m", "hoplite"]


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of the test's own, without the user's nodes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("HOPLITE_SOCKET", raising=False)
    return tmp_path


def test_node_and_status(home: Path, port: int) -> None:
    with process(*HOPLITE, "node", "--listen", f"127.0.0.1:{port}", "--store-size", "16MiB") as node:
        assert node.stdout is not None
        line = node.stdout.readline().decode()
        assert f"127.0.0.1:{port}" in line
        assert default_socket(port) in line
        for name in (
            port,
            str(port),
            f":{port}",
            f"127.0.0.1:{port}",
            f"localhost:{port}",
            default_socket(port),
        ):
            with hoplite.connect(name) as client:
                assert client.node == f"127.0.0.1:{port}"
        shown = subprocess.run([*HOPLITE, "status", str(port)], check=True, capture_output=True, text=True)
        assert f"127.0.0.1:{port}" in shown.stdout
        assert "16.0 MiB" in shown.stdout
        node.send_signal(signal.SIGTERM)
        node.wait()
    assert node.returncode == 0
    assert not Path(default_socket(port)).exists()


def test_the_environment_names_the_node(
    home: Path, cluster: hoplite.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[2])
    with hoplite.connect() as client:
        assert client.node == cluster.addresses[2]


def test_the_error_without_a_node_names_its_socket(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(hoplite.NodeUnreachable) as caught:
        hoplite.connect()
    assert default_socket(7420) in str(caught.value)
    assert "hoplite node" in str(caught.value)
    assert main(["status"]) == 1
    assert default_socket(7420) in capsys.readouterr().err


def test_hoplite_node_passes_every_option_on() -> None:
    shown = subprocess.run([*HOPLITE, "node", "--help"], check=True, capture_output=True, text=True)
    assert "--seed" in shown.stdout
    wrong = subprocess.run(
        [*HOPLITE, "node", "--no-such-option"], check=False, capture_output=True, text=True
    )
    assert wrong.returncode == 2


def test_status_shows_traffic(cluster: hoplite.LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", cluster.sockets[1]]) == 0
    shown = capsys.readouterr().out
    assert "members" in shown
    assert "4: " in shown


@pytest.mark.parametrize("bad", ["", "no port", "host:", "host:x", ":0", ":70000", "70000", 0, 70_000])
def test_invalid_addresses_are_refused(bad: str | int) -> None:
    with pytest.raises((hoplite.BadArgument, hoplite.NodeUnreachable)):
        socket_of(bad)


def test_other_hosts_are_not_reached_by_accident() -> None:
    # 192.0.2.0/24 is for documentation. No host has such an address.
    with pytest.raises(hoplite.NodeUnreachable, match="another host"):
        socket_of("192.0.2.1:7420")


def test_paths_are_taken_as_they_are() -> None:
    assert socket_of("/some/where.sock") == "/some/where.sock"
    assert socket_of(Path("./here.sock").absolute()) == os.path.abspath("here.sock")


def test_status_keeps_its_timeout(
    pair: hoplite.LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*arguments: Any, **options: Any) -> hoplite.Client:
        client = hoplite.connect(*arguments, **options)
        pair.pause(0)
        return client

    monkeypatch.setattr("hoplite.cli.connect", connect)
    assert main(["status", pair.sockets[0], "--timeout", "0.1"]) == 1
    assert "status" in capsys.readouterr().err
    pair.resume(0)
