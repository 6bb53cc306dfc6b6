"""Injects the planned faults, heals them, and records when each was in force."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lab.chaos.diagnostics import Journal
from lab.chaos.fault_generator import DAEMON_FAULTS
from lab.chaos.nodes import DRAIN_SECONDS, Life, Node
from lab.chaos.plan import Fault
from lab.hosts import Hosts

#: A daemon may be declared dead if it is paused or unreachable for this long, because a suspicion lasts 0.5 s
#: by default. A shorter fault must not lose an object.
DEATH_SECONDS = 0.5

#: Interval of the checks whether a daemon that will start again has ended.
ENDING_SECONDS = 0.05

#: Kinds that may make a living daemon seem dead, and kinds that certainly end one.
SILENCING = ("pause-daemon", "cut-link", "split")
LEAVING = "leave-daemon"
DEADLY = ("kill-daemon", "stop-daemon", LEAVING)


@dataclass
class Disturbance:
    """A fault with its actual times."""

    kind: str
    hosts: tuple[int, ...]
    since: float
    until: float | None = None
    #: Whether a leaving daemon had not handed over all objects when its time was up.
    ran_out: bool = False

    def overlaps(self, since: float, until: float) -> bool:
        return self.since <= until and (self.until is None or self.until >= since)

    def may_cost_objects(self) -> bool:
        """Whether this fault alone may lose copies on its hosts."""
        if self.kind in SILENCING:
            return (self.until or time.monotonic()) - self.since >= DEATH_SECONDS
        return self.kind in ("kill-daemon", "stop-daemon") or self.ran_out

    def __str__(self) -> str:
        hosts = ",".join(map(str, self.hosts))
        return f"{self.kind} of host {hosts}"


class History:
    """All disturbances of the run."""

    def __init__(self) -> None:
        self._all: list[Disturbance] = []

    def begin(self, kind: str, hosts: Sequence[int]) -> Disturbance:
        disturbance = Disturbance(kind, tuple(hosts), time.monotonic())
        self._all.append(disturbance)
        return disturbance

    def during(self, since: float, until: float) -> Iterator[Disturbance]:
        return (disturbance for disturbance in self._all if disturbance.overlaps(since, until))


class Breaker:
    """Injects faults, and heals them when their time is over. ``later`` is a function of the loop."""

    def __init__(
        self,
        hosts: Hosts,
        nodes: Sequence[Node],
        history: History,
        journal: Journal,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._hosts, self._nodes = hosts, nodes
        self._history, self._journal, self._later = history, journal, later
        #: Kills the client process of an operation. False if the operation is over.
        self.kill_client: Callable[[int], bool] = lambda operation: False
        #: Called for each host whose daemon has died.
        self.on_death: Callable[[int], None] = lambda host: None
        self._open: list[Disturbance] = []
        #: Disturbances of daemons that are starting again. They end when the daemon listens.
        self._returning: dict[int, Disturbance] = {}
        self.counts: Counter[str] = Counter()

    def apply(self, fault: Fault) -> None:
        if fault.kind == "kill-client":
            assert fault.operation is not None
            self.counts[fault.kind] += self.kill_client(fault.operation)
            return
        if fault.kind in DAEMON_FAULTS and self._nodes[fault.hosts[0]].life is not Life.UP:
            # The last fault took longer than planned, so the daemon is still ending or starting.
            self._journal.write(f"left out: {fault}")
            return
        self.counts[fault.kind] += 1
        self._journal.write(str(fault))
        disturbance = self._history.begin(fault.kind, fault.hosts)
        if fault.kind in DEADLY:
            self._end_daemon(self._nodes[fault.hosts[0]], fault, disturbance)
            return
        self._open.append(disturbance)
        if fault.kind == "pause-daemon":
            self._nodes[fault.hosts[0]].pause()
        elif fault.kind == "cut-link":
            self._hosts[fault.hosts[0]].cut()
        elif fault.kind == "slow-link":
            self._hosts[fault.hosts[0]].limit(fault.mbit)
        else:
            self._hosts.partition(fault.hosts)
        self._later(fault.lasts, lambda: self._mend(disturbance))

    def heal(self) -> None:
        """Heals all faults at once, and starts daemons that are down."""
        for disturbance in list(self._open):
            self._mend(disturbance)
        for index, disturbance in list(self._returning.items()):
            self._start(self._nodes[index], disturbance)

    def on_ready(self, node: Node) -> None:
        """A daemon listens for the first time, or again."""
        disturbance = self._returning.pop(node.index, None)
        if disturbance is not None:
            disturbance.until = time.monotonic()

    def is_healed(self) -> bool:
        return not self._open and not self._returning

    def _mend(self, disturbance: Disturbance) -> None:
        if disturbance not in self._open:
            return
        self._open.remove(disturbance)
        host = disturbance.hosts[0]
        if disturbance.kind == "pause-daemon":
            self._nodes[host].resume()
        elif disturbance.kind == "cut-link":
            self._hosts[host].heal()
        elif disturbance.kind == "slow-link":
            self._hosts[host].restore()
        else:
            self._hosts.partition()
        disturbance.until = time.monotonic()
        self._journal.write(f"{disturbance} ends")

    def _end_daemon(self, node: Node, fault: Fault, disturbance: Disturbance) -> None:
        end = {"kill-daemon": node.kill, "stop-daemon": node.stop, LEAVING: node.leave}
        end[fault.kind]()
        self._returning[node.index] = disturbance
        self.on_death(node.index)
        self._later(fault.lasts, lambda: self._start(node, disturbance))

    def _start(self, node: Node, disturbance: Disturbance) -> None:
        """Starts a daemon that is down. If the old one is still ending, it is started a little later."""
        if self._returning.get(node.index) is not disturbance or node.life is Life.STARTING:
            return
        if node.life is Life.STOPPING:
            self._later(ENDING_SECONDS, lambda: self._start(node, disturbance))
            return
        disturbance.ran_out = disturbance.kind == LEAVING and node.since - disturbance.since >= DRAIN_SECONDS
        node.start()
        self._journal.write(f"{disturbance} ends: the daemon starts again as pid {node.pid}")
