"""Starts real ``hoplited`` processes, on this machine or in hosts of the lab."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.hosts import Host, Hosts

#: The line that the daemon prints when it is ready.
READY = re.compile(r"^hoplited listening on (?P<address>\S+) socket (?P<socket>\S+) store (?P<store>\d+)")

PORT = 7420

STOP_SECONDS = 10.0

#: Longest time until all daemons know each other, and the interval of the checks.
JOIN_SECONDS = 20.0
POLL_SECONDS = 0.02


class DaemonFailed(RuntimeError):
    """A daemon ended, or did not become ready. The message has its output."""


def binary() -> str:
    """The path of the daemon: ``$HOPLITED``, or the one installed with Python, built here, or on the path."""
    installed = Path(sys.executable).parent / "hoplited"
    built = Path(__file__).resolve().parent.parent / "target" / "release" / "hoplited"
    for found in (os.environ.get("HOPLITED"), str(installed), str(built), shutil.which("hoplited")):
        if found and os.access(found, os.X_OK):
            return found
    return "hoplited"


@dataclass
class Daemon:
    """One running daemon: its address, and the socket of its clients."""

    process: subprocess.Popen[Any]
    address: str
    socket: str
    log: Path

    def stop(self) -> int:
        """Sends SIGTERM, waits, and returns the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise DaemonFailed(
                f"{self.address} did not stop in {STOP_SECONDS} s: {self.log.read_text()[-2000:]}"
            ) from None
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


def start(
    arguments: Sequence[str], socket: Path, host: Host | None = None, seeds: Sequence[str] = ()
) -> Daemon:
    """Starts a daemon. Returns when it listens."""
    log = socket.with_suffix(".log")
    command = [binary(), "--socket", str(socket), "--die-with-parent", *arguments]
    for seed in seeds:
        command += ["--seed", seed]
    with log.open("w") as errors:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        process = host.start(command, **options) if host else subprocess.Popen(command, **options)
    assert process.stdout is not None
    for line in process.stdout:
        ready = READY.match(line)
        if ready:
            return Daemon(process, ready["address"], ready["socket"], log)
    process.wait()
    raise DaemonFailed(f"{' '.join(command)} ended with {process.returncode}: {log.read_text()[-2000:]}")


@contextmanager
def on_loopback(count: int, store: str, *arguments: str) -> Iterator[list[Daemon]]:
    """``count`` daemons on 127.0.0.1 that join through the first. ``store`` is in the daemon's format."""
    with _sockets() as sockets:
        yield from _cluster(
            sockets, [None] * count, ["--listen", "127.0.0.1:0", "--store-size", store, *arguments]
        )


@contextmanager
def on_hosts(
    hosts: Hosts, store: str, *arguments: str, own: Mapping[int, Sequence[str]] | None = None
) -> Iterator[list[Daemon]]:
    """A daemon in each host that listens on every interface. All join through the first host's daemon.

    ``arguments`` are for all daemons, ``own`` are further arguments by host.
    """
    with _sockets() as sockets:
        yield from _cluster(
            sockets, list(hosts), ["--listen", f"0.0.0.0:{PORT}", "--store-size", store, *arguments], own
        )


@contextmanager
def _sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hoplite-lab-") as folder:
        yield Path(folder)


def _cluster(
    sockets: Path,
    hosts: Sequence[Host | None],
    arguments: Sequence[str],
    own: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[list[Daemon]]:
    daemons: list[Daemon] = []
    with ExitStack() as stack:
        for index, host in enumerate(hosts):
            seeds = [daemons[0].address] if daemons else []
            further = (own or {}).get(index, ())
            daemon = start([*arguments, *further], sockets / f"{index}.sock", host, seeds)
            stack.callback(daemon.stop)
            daemons.append(daemon)
        wait_until_joined(daemons)
        yield daemons


def wait_until_joined(daemons: Sequence[Daemon], seconds: float = JOIN_SECONDS) -> None:
    """Returns when every daemon knows all others."""
    import hoplite

    deadline = time.monotonic() + seconds
    for daemon in daemons:
        with hoplite.connect(daemon.socket) as client:
            while len(members := client.status().members) < len(daemons):
                if time.monotonic() > deadline:
                    raise DaemonFailed(f"{daemon.address} knows only {', '.join(members)} after {seconds} s")
                time.sleep(POLL_SECONDS)
