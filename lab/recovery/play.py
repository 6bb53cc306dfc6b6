"""Plays one broadcast or reduce with a failure half-way: chooses victim and time, and repairs the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import hoplite
import numpy as np

from lab.hosts import Hosts
from lab.node_host import ClientHost, NodeHost, wait_until_empty, wait_until_whole
from lab.traffic import (
    SAMPLE_SECONDS,
    Connections,
    Sampler,
    connections,
    edges,
    longest_standstill,
    middle_relay,
)
from lab.worker import START_AHEAD_SECONDS, WorkerFailed, checksum, pattern

#: Share of the time at which the tree has formed and every relay has carried bytes, well before half.
LOOK_AT_SHARE = 0.25
STRIKE_AT_SHARE = 0.5

#: Longest time until a run reaches the point of its failure.
STRIKE_SECONDS = 60.0

#: Objects for which each arena is faulted in: a source, its partial sum, and an abandoned one.
WARM_OBJECTS = 3

#: One of so many readings of the links is kept for the figure.
PROGRESS_STEP = 8

#: Interval of the checks whether a source is lost, by its producer.
ASK_SECONDS = 0.02


class WrongContent(RuntimeError):
    """A result's bytes are wrong."""


@dataclass(frozen=True)
class Fault:
    """A kind of failure, and the time in which it must be noticed with the default settings."""

    strike: Callable[[NodeHost], None]
    detection_seconds: float
    mend: Callable[[NodeHost], None] | None
    """Brings the same process back. ``None``: it is dead, and a new one replaces it."""


KILLED = Fault(NodeHost.kill_daemon, 0.05, None)
PAUSED = Fault(NodeHost.pause, 2.0, NodeHost.resume)
CUT_OFF = Fault(NodeHost.cut, 1.0, NodeHost.heal)


@dataclass(frozen=True)
class Case:
    name: str
    collective: Literal["broadcast", "reduce"]
    fault: Fault | None
    baseline: str
    put_again: Literal["elsewhere", "restarted"] | None = None
    """For a reduce without a spare source: the node that puts the lost source again."""


CASES = {
    case.name: case
    for case in (
        Case("broadcast", "broadcast", None, "broadcast"),
        Case("broadcast, relay killed", "broadcast", KILLED, "broadcast"),
        Case("broadcast, relay paused", "broadcast", PAUSED, "broadcast"),
        Case("broadcast, relay cut off", "broadcast", CUT_OFF, "broadcast"),
        Case("reduce", "reduce", None, "reduce"),
        Case("reduce, relay killed", "reduce", KILLED, "reduce"),
        Case("reduce, relay paused", "reduce", PAUSED, "reduce"),
        Case("reduce, relay cut off", "reduce", CUT_OFF, "reduce"),
        Case("reduce, source put elsewhere", "reduce", KILLED, "reduce", "elsewhere"),
        Case("reduce, node restarted", "reduce", KILLED, "reduce", "restarted"),
    )
}


@dataclass
class Struck:
    """The facts and the time of the failure half-way."""

    tree: set[tuple[int, int]]
    victim: int
    at: float
    full_rate: float
    """Bytes/s that the victim received before."""
    redone_share: float


class Stage:
    """A cluster for the cases. It is whole and empty before and after each."""

    def __init__(self, hosts: Hosts, node_hosts: Sequence[ClientHost], size: int) -> None:
        self._hosts, self._node_hosts, self._size = hosts, node_hosts, size
        self._sums: dict[frozenset[int], int] = {}

    def warm(self, node_hosts: Sequence[ClientHost]) -> None:
        """Faults in the arenas, as on a node that has run for a while, because fresh pages are slow."""
        for node_host in node_hosts:
            ids = [
                f"warm-{node_host.address}-{time.monotonic_ns()}-{number}" for number in range(WARM_OBJECTS)
            ]
            node_host.worker.ask("fill", size=self._size, seed=0)
            for id in ids:
                node_host.worker.ask("put", id=id)
            node_host.worker.ask("delete", ids=ids)

    def play(self, case: Case, number: int) -> dict[str, Any]:
        name = f"{case.name}-{number}"
        return self._broadcast(case, name) if case.collective == "broadcast" else self._reduce(case, name)

    def _broadcast(self, case: Case, name: str) -> dict[str, Any]:
        """One put on the first host, then gets on all others at the same time."""
        first, *receivers = self._node_hosts
        expected = first.worker.ask("fill", size=self._size, seed=len(self._node_hosts))["checksum"]
        first.worker.ask("put", id=name)
        before = connections(self._hosts)
        with Sampler([node_host.worker.pid for node_host in self._node_hosts]) as sampler:
            at = time.monotonic() + START_AHEAD_SECONDS
            for node_host in receivers:
                node_host.worker.send("get", at=at, id=name)
            struck = self._half_way(case.fault, sampler, before, at)
            alive = [node_host for node_host in receivers if not _is_struck(case, struck, node_host)]
            seconds = max([node_host.worker.receive()["ended"] for node_host in alive]) - at
        run = self._account(case, sampler, struck, at, seconds)
        if case.fault is not None:
            victim = self._node_hosts[struck.victim]
            alive += self._mend(case.fault, victim, name)
        if any(node_host.worker.ask("check")["checksums"] != [expected] for node_host in alive):
            raise WrongContent(f"{name}: a receiver holds other bytes than were put")
        self._clear([name])
        return run

    def _reduce(self, case: Case, name: str) -> dict[str, Any]:
        """A source on every host. The first host asks for the sum of all but one, and gets it.

        If a source is to be put again, there is no spare one, and the last host has no source.
        """
        first, *_, spare = self._node_hosts
        count = len(self._node_hosts) - 1
        sources = [f"{name}-source-{index}" for index in range(len(self._node_hosts))]
        if case.put_again:
            sources.pop()
        for index, (node_host, source) in enumerate(zip(self._node_hosts, sources, strict=False)):
            node_host.worker.ask("fill", size=self._size, seed=index)
            node_host.worker.ask("put", id=source)
        before = connections(self._hosts)
        with Sampler([node_host.worker.pid for node_host in self._node_hosts]) as sampler:
            at = time.monotonic() + START_AHEAD_SECONDS
            first.worker.send("reduce", at=at, id=name, sources=sources, count=count)
            struck = self._half_way(case.fault, sampler, before, at)
            again = {}
            if case.put_again:
                put_at = self._put_again(case.put_again, struck.victim, sources[struck.victim], spare)
                again["put_again_seconds"] = put_at - at
            answer = first.worker.receive()
        run = self._account(case, sampler, struck, at, answer["ended"] - at) | again
        run["sources"] = sorted(sources.index(source) for source in answer["sources"])
        if first.worker.ask("check")["checksums"] != [self._sum(run["sources"])]:
            raise WrongContent(f"{name}: the result is not the sum of the sources it names")
        if case.fault is not None and case.put_again != "restarted":
            self._mend(case.fault, self._node_hosts[struck.victim])
        self._clear([name, *sources])
        return run

    def _half_way(self, fault: Fault | None, sampler: Sampler, before: Connections, at: float) -> Struck:
        """Finds a relay in the middle of the tree. If there is a fault, injects it there half-way."""
        deadline = at + STRIKE_SECONDS
        look = self._size * LOOK_AT_SHARE
        _await(lambda: sum(down >= look for down in sampler.last.down) >= len(self._node_hosts) - 2, deadline)
        tree = edges(self._hosts, before, connections(self._hosts))
        victim = middle_relay(tree)
        _await(lambda: sampler.last.down[victim] >= self._size * STRIKE_AT_SHARE, deadline)
        if fault is not None:
            fault.strike(self._node_hosts[victim])
        struck_at, seen = time.monotonic(), sampler.last
        receivers = {receiver for _, receiver in tree}
        roots = receivers - {sender for sender, _ in tree}
        # Every ancestor of the failed slot has spent the same share of its time on the bytes that the root
        # has.
        done = max(seen.down[root] / sum(receiver == root for _, receiver in tree) for root in roots)
        full_rate = seen.down[victim] / (struck_at - at)
        return Struck(tree, victim, struck_at, full_rate, min(1.0, done / self._size))

    def _account(
        self, case: Case, sampler: Sampler, struck: Struck, at: float, seconds: float
    ) -> dict[str, Any]:
        run: dict[str, Any] = {"seconds": seconds, "tree": sorted(struck.tree)}
        if case.fault is None:
            return run
        behind = min(receiver for sender, receiver in struck.tree if sender == struck.victim)
        done = (sample.at for sample in sampler.samples if sample.down[behind] >= self._size)
        until = min(next(done, at + seconds), at + seconds)
        run["victim"] = struck.victim
        run["struck_seconds"] = struck.at - at
        run["redone_share"] = struck.redone_share
        run["standstill_seconds"] = longest_standstill(
            sampler.samples, behind, struck.at - 2 * SAMPLE_SECONDS, until, struck.full_rate
        )
        kept = sampler.samples[::PROGRESS_STEP]
        run["progress"] = [[round(sample.at - at, 4), *sample.down] for sample in kept]
        return run

    def _mend(self, fault: Fault, victim: ClientHost, getting: str | None = None) -> list[ClientHost]:
        """Makes the cluster whole again. Returns the victim if it has the object that it is ``getting``."""
        if fault.mend is not None:
            fault.mend(victim)
            wait_until_whole(self._node_hosts)
            if getting is None:
                return []
            _get_after_all(victim, getting)
            return [victim]
        if getting is not None:
            _expect_failure(victim, "NodeUnreachable")
        self._restart(victim)
        self.warm([victim])
        return []

    def _restart(self, victim: ClientHost) -> None:
        victim.restart(self._node_hosts[0].address)
        wait_until_whole(self._node_hosts)

    def _put_again(self, how: str, victim: int, source: str, spare: ClientHost) -> float:
        """Puts the lost source again, as a task framework would. Returns the time at which the put began."""
        with hoplite.connect(spare.daemon.socket) as client:
            lost = self._node_hosts[victim].address
            deadline = time.monotonic() + STRIKE_SECONDS
            _await(
                lambda: all(copy.node != lost for copy in client.locations(source).copies),
                deadline,
                ASK_SECONDS,
            )
        if how == "restarted":
            self._restart(self._node_hosts[victim])
            spare = self._node_hosts[victim]
        spare.worker.ask("fill", size=self._size, seed=victim)
        return float(spare.worker.ask("put", id=source)["began"])

    def _sum(self, indices: Sequence[int]) -> int:
        key = frozenset(indices)
        if key not in self._sums:
            total = np.zeros(self._size // 4, np.float32)
            for index in indices:
                total += pattern(self._size, index)
            self._sums[key] = checksum(total)
        return self._sums[key]

    def _clear(self, ids: list[str]) -> None:
        """Deletes the objects of a run. Nothing of them may be left on any node."""
        self._node_hosts[0].worker.ask("delete", ids=ids)
        wait_until_empty(self._node_hosts)


def _is_struck(case: Case, struck: Struck, node_host: ClientHost) -> bool:
    return case.fault is not None and node_host.host.index == struck.victim


def _get_after_all(node_host: ClientHost, id: str) -> None:
    """Ends a get at a node that was paused or cut off and is back."""
    try:
        node_host.worker.receive()
    except WorkerFailed as error:
        # While it was cut off, the node believed all others dead, and so every complete copy lost.
        if "ObjectLost" not in str(error):
            raise
        node_host.worker.ask("get", id=id)


def _expect_failure(node_host: ClientHost, kind: str) -> None:
    try:
        node_host.worker.receive()
    except WorkerFailed as error:
        if kind in str(error):
            return
        raise
    raise WrongContent(f"{node_host.address} is dead, and yet its client got the object")


def _await(condition: Callable[[], bool], deadline: float, every: float = SAMPLE_SECONDS) -> None:
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the run did not come to the point where it is to be struck")
        time.sleep(every)
