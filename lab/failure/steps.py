"""Runs an application's steps one after the other. A participant dies in one step and comes back later."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lab.daemons import Daemon
from lab.hosts import Host, Hosts
from lab.node_host import NodeHost
from lab.report import median
from lab.results import ROOT
from lab.traffic import connections, edges, middle_relay

#: Times in the step with the failure, as shares of a step's time. At the first, the trees have formed.
LOOK_AT_SHARE = 0.25
STRIKE_AT_SHARE = 0.5

#: The host of the frontend or server. It does not fail.
DRIVER = 0


class Application(Protocol):
    """An application that runs step after step. Every call ends in bounded time or raises."""

    name: str
    title: str

    def prepare(self, step: int) -> None: ...
    def step(self, step: int) -> int: ...
    def tidy(self, step: int) -> None: ...
    def arguments(self, participant: int, step: int) -> list[str]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Plan:
    """The numbers of counted steps and of warm-up steps, and the steps of the death and the return."""

    steps: int
    warm_steps: int
    fail_step: int
    rejoin_step: int
    fails: bool


class ParticipantDied(RuntimeError):
    """A participant ended by itself. Its output is on standard error."""


class Participant(NodeHost):
    """A host with a daemon and one process that works by itself until it is killed."""

    process: subprocess.Popen[bytes]

    def begin(self, arguments: Sequence[str]) -> None:
        module, *rest = arguments
        command = [sys.executable, "-m", module, self.daemon.socket, *rest]
        self.process = self.host.start(command, cwd=ROOT)

    def kill(self) -> None:
        """Kills the daemon and its client at the same time."""
        self.process.kill()
        self.kill_daemon()
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        super().close()


class Strike:
    """Finds the relays in a running step, and kills one of them. Runs in a thread of its own."""

    def __init__(
        self, hosts: Hosts, participants: dict[int, Participant], typical: float, kill: bool
    ) -> None:
        self._hosts, self._participants, self._typical, self._kill = hosts, participants, typical, kill
        self._error: Exception | None = None
        self.victim = DRIVER
        self._before = connections(hosts)
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            time.sleep(self._typical * LOOK_AT_SHARE)
            tree = edges(self._hosts, self._before, connections(self._hosts))
            self.victim = middle_relay(edge for edge in tree if DRIVER not in edge)
            strike_at = self._began + self._typical * STRIKE_AT_SHARE
            time.sleep(max(0.0, strike_at - time.monotonic()))
            if self._kill:
                self._participants[self.victim].kill()
        except Exception as error:
            self._error = error


def play(
    application: Application, hosts: Hosts, daemons: Sequence[Daemon], store: str, plan: Plan
) -> dict[str, Any]:
    """Runs the steps. Returns their latencies in seconds, the victim, and when the driver noticed."""
    participants = {
        host.index: _begin(application, host, daemon, store)
        for host, daemon in zip(hosts, daemons, strict=True)
        if host.index != DRIVER
    }
    run = _Run(application, hosts, participants, daemons[DRIVER].address, plan)
    try:
        for step in range(plan.warm_steps + plan.steps):
            run.step(step)
    finally:
        for participant in participants.values():
            participant.close()
    result: dict[str, Any] = {
        "latencies": run.latencies[plan.warm_steps :],
        "alive": run.alive[plan.warm_steps :],
    }
    if plan.fails and run.strike is not None:
        result["victim"] = run.strike.victim
        _must_have_been_noticed(result["alive"], plan, len(participants))
    return result


def _begin(application: Application, host: Host, daemon: Daemon, store: str) -> Participant:
    participant = Participant(host, daemon, store)
    participant.begin(application.arguments(host.index, 0))
    return participant


def _must_have_been_noticed(alive: Sequence[int], plan: Plan, participants: int) -> None:
    """Checks that the driver noticed the death and the return. It learns of them from its own node alone."""
    away, back = min(alive[plan.fail_step : plan.rejoin_step]), alive[-1]
    if away >= participants or back != participants:
        raise ParticipantDied(
            f"of {participants} participants {away} were seen while one was dead, {back} in the end"
        )


class _Run:
    """A run, with its steps so far."""

    def __init__(
        self,
        application: Application,
        hosts: Hosts,
        participants: dict[int, Participant],
        seed: str,
        plan: Plan,
    ) -> None:
        self._application, self._hosts, self._participants = application, hosts, participants
        self._seed, self._plan = seed, plan
        self._dead: set[int] = set()
        self.latencies: list[float] = []
        self.alive: list[int] = []
        self.strike: Strike | None = None

    def step(self, step: int) -> None:
        counted = step - self._plan.warm_steps
        if counted == self._plan.rejoin_step:
            self._rejoin(step)
        self._application.prepare(step)
        striking = counted == self._plan.fail_step
        if striking:
            typical = median(self.latencies[self._plan.warm_steps :])
            self.strike = Strike(self._hosts, self._participants, typical, self._plan.fails)
        began = time.monotonic()
        self.alive.append(self._application.step(step))
        self.latencies.append(time.monotonic() - began)
        if striking and self.strike is not None:
            self.strike.join()
            if self._plan.fails:
                self._dead.add(self.strike.victim)
        self._application.tidy(step)
        for index, participant in self._participants.items():
            if index not in self._dead and participant.process.poll() is not None:
                raise ParticipantDied(f"step {step}: participant {index} ended by itself")

    def _rejoin(self, step: int) -> None:
        for index in self._dead:
            participant = self._participants[index]
            participant.restart_daemon(self._seed)
            participant.begin(self._application.arguments(index, step))
        self._dead.clear()
