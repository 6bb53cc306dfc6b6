"""Peers that are Python packages: their installation, start and end, and a tree for sums."""

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
from lab.report import PEERS
from lab.results import ROOT
from lab.worker import WorkerFailed

BIN = PEERS / "bin"

#: Longest time from the first process of a peer's cluster until all hosts are in it. Ray takes 4 s a node
#: here, one after the other.
START_SECONDS = 150.0

#: Time that a peer's process has to end before it is killed.
STOP_SECONDS = 15.0

POLL_SECONDS = 0.05


class PeerFailed(WorkerFailed):
    """A peer's process ended or did not become ready. The message has the end of its output."""


def missing(package: str) -> str:
    """The instruction to install a package of the peers. Empty if it is installed."""
    if any(PEERS.glob(f"lib/python*/site-packages/{package}")):
        return ""
    return f"{package} is not in {PEERS.name}: `make peers` installs it (lab/systems/requirements.txt)"


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with the peers' Python."""
    return [str(BIN / "python"), "-m", module, *arguments]


class Daemons:
    """Background processes of a peer in lab hosts, and a folder for their files. Leaving stops them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        # A short path, because sockets are below it and the path of a Unix socket may have only 107 bytes.
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-")))
        self._running: list[tuple[subprocess.Popen[Any], Path]] = []

    def __enter__(self) -> Daemons:
        return self

    @property
    def pids(self) -> list[int]:
        return [process.pid for process, _log in self._running]

    def __exit__(self, *_: object) -> None:
        with self._stack:
            # Stop the first one last. The others report to it, and would try for long to reach it.
            _stop([process for process, _log in self._running[1:]])
            _stop([process for process, _log in self._running[:1]])

    def start(self, name: str, host: Host, command: Sequence[str], environment: Mapping[str, str]) -> Path:
        """Starts a process. Returns the file with its output."""
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
        """Waits until the process has printed ``words``."""
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
    """The sum of all parts, one of each host: first sums of pairs of hosts, then sums of pairs of these.

    ``add`` adds two parts on the host of this number. The last addition is on host 0.
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
    """Standard output for answers only. Output of libraries goes to standard error."""
    with os.fdopen(os.dup(1), "w") as pipe:
        os.dup2(2, 1)
        yield pipe
