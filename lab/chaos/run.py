"""The main loop of a run: handles events, starts planned operations and faults, and watches all processes."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from queue import Empty
from typing import Any

from lab.chaos.diagnostics import ChaosFailed, Folder, Journal, Progress, Tally
from lab.chaos.faults import Breaker, History
from lab.chaos.final_checks import LOOK_SECONDS, FinalChecks
from lab.chaos.generator import CLIENTS_PER_HOST
from lab.chaos.judge import Judge
from lab.chaos.members import Events, Member
from lab.chaos.nodes import Life, Node
from lab.chaos.plan import Round
from lab.chaos.workload import Workload
from lab.daemons import PORT
from lab.hosts import Hosts

#: Rate of every host's link, each way. Large objects take long enough for faults to hit them half-way, and
#: all links together do not saturate two cores.
RATE_MBIT = 200

#: Longest time until all client processes have started: Python, sixteen times, on two cores.
MEMBERS_SECONDS = 60.0

#: Time after a failure in which client processes write the stacks of their threads.
DUMP_SECONDS = 0.5

#: Longest interval of the loop's checks of processes and time-outs.
TICK_SECONDS = 0.05


class Run:
    """A run, with nodes and clients that exist through all rounds."""

    def __init__(self, hosts: Hosts, folder: Folder) -> None:
        self._hosts, self._folder = hosts, folder
        self._events: Events = Events()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._journal = Journal(folder.path / "journal.txt")
        self._progress = Progress()
        self._history = History()
        self._workload: Workload | None = None
        self._breaker: Breaker | None = None
        self.tally = Tally()
        self.faults: Counter[str] = Counter()
        self.round: Round | None = None
        self.round_began = 0.0
        self._stage = ""
        addresses = [f"{host.address}:{PORT}" for host in hosts]
        self.nodes = [Node(host, folder.path, addresses, self._events) for host in hosts]
        self._members: dict[tuple[int, int], Member] = {}
        self._final_checks = FinalChecks(self.nodes, self._members, self.tally, self.until, self.show)

    def begin(self) -> None:
        """Starts all daemons and clients, and waits until the daemons know each other."""
        for node in self.nodes:
            node.start()
        self._final_checks.meet()
        for host in self._hosts:
            for slot in range(CLIENTS_PER_HOST):
                self._enlist(host.index, slot)
        if not self.until(lambda: all(member.ready_at for member in self._members.values()), MEMBERS_SECONDS):
            raise ChaosFailed([f"the client processes did not start in {MEMBERS_SECONDS:g} s"])

    def play(self, plan: Round) -> None:
        """Runs one round: chaos, healing, final checks."""
        self.round, self.round_began = plan, time.monotonic()
        self._journal.head(str(plan))
        judge = Judge(self._history, len(self.nodes))
        workload = Workload(plan, self.nodes, self._members, judge, self._journal, self.tally, self.later)
        breaker = Breaker(self._hosts, self.nodes, self._history, self._journal, self.later)
        breaker.kill_client, breaker.on_death = self._kill_client, workload.on_death
        self._workload, self._breaker = workload, breaker
        for operation in plan.operations:
            self.later(operation.at, lambda operation=operation: workload.begin(operation))  # type: ignore[misc]
        for fault in plan.faults:
            self.later(fault.at, lambda fault=fault: breaker.apply(fault))  # type: ignore[misc]
        self.until(lambda: False, plan.seconds)
        self._journal.write("healing")
        breaker.heal()
        self._final_checks.meet(breaker)
        self._final_checks.finish(workload)
        self._final_checks.read(workload)
        self._final_checks.delete(workload)
        self._final_checks.empty()
        self.faults += breaker.counts
        # Pending actions are obsolete: late healing, and checks after deaths.
        self._due.clear()
        self._workload = self._breaker = self.round = None
        self.show("")

    def end(self) -> None:
        """Checks that all daemons are quiet and end on SIGTERM."""
        self._final_checks.quiet()
        self._final_checks.stop()
        self._progress.clear()

    def waited_for(self) -> list[str]:
        """The ids that operations wait for now."""
        if self._workload is None:
            return []
        return [self._workload.known[name].id for name in self._workload.waited_for()]

    def dump(self) -> None:
        """Writes the state of the living processes into the folder."""
        for node in self.nodes:
            if node.life in (Life.UP, Life.PAUSED):
                told = [*node.files(), node.sockets()]
                (self._folder.path / f"node-{node.index}-files.txt").write_text("\n".join(told))
        for member in self._members.values():
            if member.ready_at is not None and not member.was_killed:
                member.dump()
        time.sleep(DUMP_SECONDS)

    def close(self) -> None:
        """Ends all processes in any case."""
        self._progress.clear()
        for member in self._members.values():
            member.close()
        for node in self.nodes:
            node.close()
        self._journal.close()

    # The loop.

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), call))

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Runs the loop until ``done()`` is true, or until the time is up. Returns whether it became true."""
        limit = time.monotonic() + seconds
        look = 0.0
        while (now := time.monotonic()) < limit:
            if now >= look:
                if done():
                    return True
                look = now + LOOK_SECONDS
            self._turn(min(limit, look))
        return done()

    def _turn(self, limit: float) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        next_at = min([limit, now + TICK_SECONDS, *(due[0] for due in self._due[:1])])
        try:
            self._on_event(*self._events.get(timeout=max(0.0, next_at - now)))
            while True:
                self._on_event(*self._events.get_nowait())
        except Empty:
            pass
        self._watch()

    def _on_event(self, kind: str, member: Any, detail: Any) -> None:
        if kind == "ready":
            if member.is_ready(detail) and self._breaker is not None:
                self._breaker.on_ready(member)
        elif kind == "gone":
            self._on_gone(member)
        elif self._workload is not None:
            self._workload.on_answer(detail)

    def _watch(self) -> None:
        """Fails the run if a process has a problem or a call hangs."""
        for node in self.nodes:
            problem = node.problem()
            if problem:
                raise ChaosFailed([f"the daemon {node.address} {problem}"])
        hanging = self._workload.hanging() if self._workload else []
        if hanging:
            ids = [id for attempt in hanging for id in attempt.ids]
            raise ChaosFailed([f"{attempt} hangs: no answer after its time-out" for attempt in hanging], ids)
        self._progress.show(self._state())

    def _state(self) -> str:
        if self.round is None or self._workload is None or self._breaker is None:
            return self._stage
        seconds = time.monotonic() - self.round_began
        return (
            f"round {self.round.number} {min(seconds, self.round.seconds):5.1f} s:"
            f" {self.tally.operations()} operations ended, {len(self._workload.open)} open,"
            f" {self.tally.checks} contents checked,"
            f" {(self.faults + self._breaker.counts).total()} faults{self._stage}"
        )

    def show(self, stage: str) -> None:
        """Sets the stage of the final checks that progress shows."""
        self._stage = f"; {stage}" if stage else ""
        self._journal.write(stage)

    # Client processes.

    def _enlist(self, host: int, slot: int) -> None:
        log = self._folder.path / f"client-{host}-{slot}.log"
        member = Member(self._hosts[host], slot, self.nodes[host].socket, log, self._events)
        self._members[host, slot] = member

    def _kill_client(self, operation: int) -> bool:
        """Kills the client process of an operation. False if the operation is over."""
        member = self._workload.member_of(operation) if self._workload else None
        if member is None:
            return False
        self._journal.write(f"FAULT   {member} is killed, in the middle of op {operation}")
        member.kill()
        return True

    def _on_gone(self, member: Member) -> None:
        if not member.was_killed:
            raise ChaosFailed([f"{member} ended by itself; its log: {member.log}"])
        member.close()
        self._enlist(member.host, member.slot)
        if self._workload is not None:
            self._workload.on_gone(member)
