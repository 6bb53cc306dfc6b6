"""Peers that are Python packages: where they are installed, how they start and end, how they add up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from lab.hosts import Host
from lab.report import PEERS, ROOT
from lab.worker import WorkerFailed

BIN = PEERS / "bin"

#: Longest that a cluster of a peer's may take from its first process until all hosts are in it. Ray
#: takes 4 s a node here, one after the other.
START_SECONDS = 150.0

#: Longest that a peer's process may take to end when it is told to, before it is killed.
STOP_SECONDS = 15.0

POLL_SECONDS = 0.05


class PeerFailed(WorkerFailed):
    """A peer's process ended or did not become ready; the message holds the end of what it printed."""


def missing(package: str) -> str:
    """What to do when a package of the peers is not installed; empty if it is."""
    if any(PEERS.glob(f"lib/python*/site-packages/{package}")):
        return ""
    return f"{package} is not in {PEERS.name}: `make peers` installs it (lab/systems/requirements.txt)"


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with the peers' Python."""
    return [str(BIN / "python"), "-m", module, *arguments]


class Daemons:
    """Background processes of a peer in lab hosts, with a folder for what they write. Stopped when left."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        # A short path: sockets lie below it, and the path of a Unix socket holds 107 bytes.
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-")))
        self._running: list[tuple[subprocess.Popen[Any], Path]] = []

    def __enter__(self) -> Daemons:
        return self

    @property
    def pids(self) -> list[int]:
        return [process.pid for process, _log in self._running]

    def __exit__(self, *_: object) -> None:
        with self._stack:
            # The first one last: the others report to it, and try for long to reach it once it is gone.
            _stop([process for process, _log in self._running[1:]])
            _stop([process for process, _log in self._running[:1]])

    def start(self, name: str, host: Host, command: Sequence[str], environment: Mapping[str, str]) -> Path:
        """Starts one; returns the file with what it prints."""
        log = self.folder / f"{name}.log"
        with log.open("w") as output:
            process = host.start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
            )
        self._running.append((process, log))
        return log

    def wait_for(self, log: Path, words: str) -> None:
        """Returns once the process has printed ``words``."""
        process = next(process for process, written in self._running if written == log)
        deadline = time.monotonic() + START_SECONDS
        while words not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                state = "is still starting" if process.poll() is None else f"ended with {process.poll()}"
                raise PeerFailed(f"{log.stem} {state}: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_SECONDS)


def _stop(processes: Sequence[subprocess.Popen[Any]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tree(parts: Sequence[Any], add: Callable[[int, Any, Any], Any]) -> Any:
    """What all parts, one of each host, add up to: pairs of hosts first, then pairs of their sums.

    ``add`` adds two up on the host of this number; the last does so on host 0.
    """
    sums = dict(enumerate(parts))
    step = 1
    while step < len(parts):
        for left in range(0, len(parts) - step, 2 * step):
            sums[left] = add(left, sums[left], sums[left + step])
        step *= 2
    return sums[0]


@contextlib.contextmanager
def answers() -> Iterator[IO[str]]:
    """Standard output for answers alone: what a library prints there goes to standard error."""
    with os.fdopen(os.dup(1), "w") as pipe:
        os.dup2(2, 1)
        yield pipe
