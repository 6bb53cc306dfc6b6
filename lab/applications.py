"""Runs the programs of `examples.on_ray` on hosts of the lab, as any user would.

Peers with a fixed group also do synchronous training, on hosts of their own with the same links.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import interleave, processes, systems
from lab.hosts import Host, Hosts
from lab.memory import settle
from lab.network import Network
from lab.report import progress
from lab.results import ROOT
from lab.systems import ray
from lab.systems.training import Trains

#: The suffix of each system's program after the application's name.
TWINS = {"hoplite": "", "ray": "_plain"}

#: Longest that a program may run.
PROGRAM_SECONDS = 900.0

#: Rounds before those that count: connections open, memory is faulted in, and workers fall in step.
WARM_UP_ROUNDS = 2


class ProgramFailed(RuntimeError):
    """A program failed. The message has the end of its output."""


@dataclass(frozen=True)
class Application:
    """A program, its arguments and its targets."""

    title: str
    program: str
    arguments: Sequence[str]
    size: int
    """Bytes of the object that all workers need in a round: parameters, a policy, a batch."""
    targets: Mapping[int, float]
    """The required speed as a multiple of Ray alone, by number of workers."""
    peers: Sequence[str] = ()
    """Systems of `lab.systems` without Ray that can run it too. Hoplite must be as fast as each of them."""


SGD = {8: 5.0, 16: 7.8}
A3C = {8: 2.2, 16: 3.9}
IMPALA = {8: 1.9, 16: 1.9}
SERVING = {8: 2.2, 16: 3.3}

#: Stand-in for the computation of a gradient.
COMPUTE_SECONDS = 0.1

POLICY_BYTES = 64_000_000
WEIGHT_BYTES = 24 * (6 * 512 * 512 + 2 * 512) * 4
BATCH_BYTES = 64 * 256 * 256 * 3 * 4


def _sgd(model: str, name: str, size: int) -> Application:
    arguments = ("--model", model, "--compute", str(COMPUTE_SECONDS))
    return Application(f"Asynchronous SGD, {name}", "async_sgd", arguments, size, SGD)


APPLICATIONS = {
    "sgd-resnet50": _sgd("resnet50", "ResNet-50", 102_000_000),
    "sgd-alexnet": _sgd("alexnet", "AlexNet", 244_000_000),
    "sgd-vgg16": _sgd("vgg16", "VGG-16", 553_000_000),
    "a3c": Application(
        "A3C, CartPole",
        "async_sgd",
        ("--model", "cartpole", "--policy-size", str(POLICY_BYTES)),
        POLICY_BYTES,
        A3C,
    ),
    "impala": Application(
        "IMPALA, CartPole", "impala", ("--policy-size", str(POLICY_BYTES)), POLICY_BYTES, IMPALA
    ),
    "sync-resnet50": Application(
        "Synchronous training, ResNet-50",
        "sync_training",
        ("--model", "resnet50", "--compute", str(COMPUTE_SECONDS)),
        102_000_000,
        {},
        ("openmpi", "gloo"),
    ),
    "weights": Application(
        "Weights for engines, 144 of 1 MiB", "weight_sync", ("--steady",), WEIGHT_BYTES, {}
    ),
    "serving": Application("Serving by an ensemble", "serving", (), BATCH_BYTES, SERVING),
}


class Cluster:
    """A Ray node on every host, with a CPU for one worker on each but the first.

    Hoplite's nodes run from the first use of Hoplite until the next use of Ray alone, because the stores of
    both on sixteen hosts do not fit into this machine's memory.
    """

    def __init__(self, hosts: Hosts, head: str, processes: Sequence[int], store: str) -> None:
        """``processes``: ids of the ancestors of all processes of the cluster."""
        self.processes = processes
        self.head = head
        self._hosts, self._store = hosts, store
        self._has_hoplite = False

    def seconds_of(self, application: Application, system: str, workers: int, rounds: int) -> list[float]:
        """Runs the program once, with its driver on host 0. Returns the seconds of each round that counts."""
        self.use_hoplite(system == interleave.OURS)
        settle()
        with tempfile.TemporaryDirectory() as folder, all_taking_part(self._hosts, application.size):
            left = Path(folder, "seconds.json")
            command = ["-m", f"examples.on_ray.{application.program}{TWINS[system]}", *application.arguments]
            command += ["--address", self.head, "--workers", str(workers)]
            command += ["--rounds", str(WARM_UP_ROUNDS + rounds), "--seconds", str(left)]
            _run(self._hosts[0], command)
            self._spilled_nothing()
            seconds: list[float] = json.loads(left.read_text())
        return seconds[WARM_UP_ROUNDS:]

    def use_hoplite(self, wanted: bool = True) -> None:
        """Starts or stops Hoplite's nodes."""
        if wanted == self._has_hoplite:
            return
        # A separate program starts them, as any other program would start nodes with another store size.
        _run(self._hosts[0], ["-m", "lab.ray_nodes", self.head, *([self._store] if wanted else [])])
        self._has_hoplite = wanted

    def _spilled_nothing(self) -> None:
        """Raises ``ProgramFailed`` if Ray's object stores spilled to disk, which slows Ray down."""
        if spilled := int(_run(self._hosts[0], ["-m", "lab.ray_stores", self.head])):
            raise ProgramFailed(f"Ray's object stores have put {spilled} bytes on disk")


@contextmanager
def cluster(hosts: Hosts, store: str) -> Iterator[Cluster]:
    """``store``: size of the store of each Hoplite node."""
    for host in hosts:
        # Ray takes the source address of the default route for the address of this host.
        host.run(["ip", "route", "add", "default", "dev", "eth0"])
    with ray.cluster(hosts, Path(sys.executable).parent, head_cpus=0, cpus=1) as nodes:
        yield Cluster(hosts, nodes.head, nodes.daemons.pids, store)


@contextmanager
def groups(names: Sequence[str], workers: int, network: Network, store: str) -> Iterator[Sequence[Trains]]:
    """The installed systems of these names that can train, each with a rank for every worker."""
    found = []
    for name in names:
        if lacking := systems.module(name).missing():
            progress(f"{name} is left out: {lacking}")
        else:
            found.append(name)
    with ExitStack() as stack:
        running: Sequence[object] = ()
        if found:
            _, running = stack.enter_context(interleave.opened(found, workers, network, store))
        yield [system for system in running if isinstance(system, Trains)]


def seconds_of_group(
    application: Application, group: Trains, ray_processes: Sequence[int], rounds: int
) -> list[float]:
    """As `Cluster.seconds_of`, for a system without Ray. Ray's processes are stopped during the run."""
    settle()
    paused = processes.pause(ray_processes)
    try:
        return group.train(application.size, COMPUTE_SECONDS, WARM_UP_ROUNDS + rounds)[WARM_UP_ROUNDS:]
    finally:
        processes.resume(paused)


@contextmanager
def all_taking_part(hosts: Hosts, size: int) -> Iterator[None]:
    """Raises ``ProgramFailed`` if a host other than the first received less than ``size`` bytes.

    Ray may put several workers on one host, and these then have no network between them.
    """
    before = [host.link_bytes()["down"] for host in hosts]
    yield
    received = [host.link_bytes()["down"] - count for host, count in zip(hosts, before, strict=True)]
    if idle := [index for index, count in enumerate(received) if index > 0 and count < size]:
        raise ProgramFailed(f"hosts {idle} took no part")


def busy_and_idle() -> tuple[int, int]:
    """Busy and idle time of all cores of this machine so far, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def _run(host: Host, arguments: Sequence[str]) -> str:
    """Runs a program and returns its output."""
    ended = subprocess.run(
        host.command([sys.executable, *arguments]),
        cwd=ROOT,
        env={**os.environ, **ray.SETTINGS},
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    if ended.returncode != 0:
        raise ProgramFailed(f"{' '.join(arguments)}: {ended.stdout[-1000:]}{ended.stderr[-3000:]}")
    return ended.stdout
