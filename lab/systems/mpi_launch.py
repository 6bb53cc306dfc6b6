"""Starts a rank of an MPI program on every lab host with the library's own mpirun.

Entering a host replaces ssh (`mpi_enter.sh`). mpirun itself runs in host 0. Each rank takes its commands over
a Unix socket, which all hosts can access.
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
from lab.results import ROOT
from lab.systems import peers
from lab.worker import Driven, WorkerFailed

#: The replacement of ssh.
ENTER = ROOT / "lab" / "systems" / "mpi_enter.sh"

#: Time-out of a launch, as launches sometimes hang.
LAUNCH_SECONDS = 60.0

#: Time that mpirun has to end after the ranks are told to end.
STOP_SECONDS = 10.0

POLL_SECONDS = 0.1

#: A variable in the environment of all processes of one launch, so that all can be found and killed.
MARK = "HOPLITE_LAB_LAUNCH"


class LaunchFailed(WorkerFailed):
    """mpirun did not start all ranks. The message has its output."""


@dataclass(frozen=True)
class Library:
    """The way to launch one MPI library."""

    name: str
    mpirun: Callable[[Sequence[str]], list[str]]
    """The command of mpirun with its options, for hosts of these names."""
    shared_object: str
    """The library from which MPI's tool interface is loaded."""
    environment: Mapping[str, str]
    aliases: Mapping[str, Path] = field(default_factory=dict)
    """Names under which mpi4py looks for the shared object, if Debian uses another name."""


def missing(program: str) -> str:
    """The instruction to install a library's mpirun or its ranks' requirements. Empty if all are there."""
    if shutil.which(program) is None:
        return f"{program} is not installed: `make peers` does it"
    return peers.missing("mpi4py")


@contextmanager
def launched(library: Library, hosts: Hosts) -> Iterator[list[Driven]]:
    """A rank on every host, in the order of the hosts. They end with the context. If it fails, try again."""
    with ExitStack() as launch:
        folder = Path(
            launch.enter_context(tempfile.TemporaryDirectory(prefix=f"hoplite-lab-{library.name}-"))
        )
        yield _launch(library, hosts, folder, launch)


def _launch(library: Library, hosts: Hosts, folder: Path, launch: ExitStack) -> list[Driven]:
    """``launch`` ends, in this order, the ranks, mpirun, and all other processes."""
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
    """The number and the pipe of a rank that has connected. The rank ends when its connection ends."""
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
    """Kills the processes that a launch has left in the hosts: launchers and ranks that hang."""
    for namespace in namespaces:
        found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout
        for pid in found.split():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                    os.kill(int(pid), signal.SIGKILL)
