"""Starts a rank of an MPI program on every lab host, by the library's own mpirun.

Entering a host stands in for ssh (`mpi_enter.sh`). mpirun itself runs in host 0. Each rank takes its commands
over a Unix socket, which all hosts see.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.hosts import Hosts
from lab.report import ROOT
from lab.systems import peers
from lab.worker import Driven, WorkerFailed

#: Stands in for ssh.
ENTER = ROOT / "lab" / "systems" / "mpi_enter.sh"

#: Now and then a launch hangs.
LAUNCH_SECONDS = 60.0

#: Time mpirun gets to end once the ranks are told to.
STOP_SECONDS = 10.0

POLL_SECONDS = 0.1

#: In the environment of all that one launch starts, so that all of it can be found and ended.
MARK = "HOPLITE_LAB_LAUNCH"


class LaunchFailed(WorkerFailed):
    """mpirun did not bring up all ranks; the message holds what it printed."""


@dataclass(frozen=True)
class Library:
    """How one MPI library is launched."""

    name: str
    mpirun: Callable[[Sequence[str]], list[str]]
    """mpirun with its options, for hosts of these names."""
    shared_object: str
    """What MPI's tool interface is loaded from."""
    environment: Mapping[str, str]
    aliases: Mapping[str, Path] = field(default_factory=dict)
    """Names under which mpi4py looks for the shared object, where Debian has it under another."""


def missing(program: str) -> str:
    """What is to be done where a library's mpirun, or what its ranks need, is not there."""
    if shutil.which(program) is None:
        return f"{program} is not installed: `make peers` does it"
    return peers.missing("mpi4py")


@contextmanager
def launched(library: Library, hosts: Hosts) -> Iterator[list[Driven]]:
    """A rank on every host, in the order of the hosts; they end with the context. May fail: try it again."""
    with ExitStack() as launch:
        folder = Path(
            launch.enter_context(tempfile.TemporaryDirectory(prefix=f"hoplite-lab-{library.name}-"))
        )
        yield _launch(library, hosts, folder, launch)


def _launch(library: Library, hosts: Hosts, folder: Path, launch: ExitStack) -> list[Driven]:
    """``launch`` ends, in this order, the ranks, mpirun, and whatever is left."""
    names = [host.namespace for host in hosts]
    table = "".join(f"{host.address} {host.namespace}\n" for host in hosts)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
    for alias, shared_object in library.aliases.items():
        (folder / alias).symlink_to(shared_object)
    listener = launch.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(folder / "socket"))
    listener.listen(len(hosts))
    listener.settimeout(POLL_SECONDS)
    rank = peers.python("lab.systems.mpi_rank", str(folder / "socket"), library.shared_object)
    environment = {
        **os.environ,
        **library.environment,
        "HOPLITE_LAB_HOSTS_FILE": str(folder / "hosts"),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": str(ROOT),
        MARK: folder.name,
    }
    launch.callback(_kill_marked, names, folder.name)
    with (folder / "log").open("w") as log:
        mpirun = subprocess.Popen(
            [str(ENTER), names[0], "exec " + shlex.join([*library.mpirun(names), *rank])],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    launch.callback(_end, mpirun)
    ranks: dict[int, Driven] = {}
    deadline = time.monotonic() + LAUNCH_SECONDS
    while len(ranks) < len(hosts):
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            ranks.update([_rank(connection, launch)])
        if mpirun.poll() is not None or time.monotonic() > deadline:
            state = "hangs" if mpirun.poll() is None else f"ended with {mpirun.returncode}"
            printed = (folder / "log").read_text()[-2000:] or "nothing"
            raise LaunchFailed(f"{len(ranks)} of {len(hosts)} ranks came; mpirun {state}, printed {printed}")
    return [ranks[number] for number in range(len(ranks))]


def _rank(connection: socket.socket, launch: ExitStack) -> tuple[int, Driven]:
    """A rank that has connected, by its number; it ends when the connection does."""
    launch.enter_context(connection)
    answers = launch.enter_context(connection.makefile("r"))
    calls = launch.enter_context(connection.makefile("w"))
    rank = Driven("a rank", calls, answers)
    number = int(rank.receive(LAUNCH_SECONDS)["rank"])
    rank.name = f"rank {number}"
    return number, rank


def _end(mpirun: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        mpirun.wait(STOP_SECONDS)
    if mpirun.poll() is None:
        mpirun.kill()
        mpirun.wait()


def _kill_marked(namespaces: Sequence[str], mark: str) -> None:
    """Kills what a launch has left in the hosts: launchers and ranks that hang."""
    for namespace in namespaces:
        found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout
        for pid in found.split():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                    os.kill(int(pid), signal.SIGKILL)
