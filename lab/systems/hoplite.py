"""Hoplite: a daemon and a client on every host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lab.daemons import on_hosts
from lab.hosts import Hosts
from lab.memory import Memory
from lab.systems import CASES, ROUND_TRIP, System, WrongContent, delays, expected, round_trips
from lab.worker import START_AHEAD_SECONDS, Worker

#: Bytes of all stores together that are written to before timed runs, as is the memory of the peers'
#: receivers. On a virtual machine the first use of memory takes a second for each GiB. Each node faults in
#: some hundred MiB more by itself (`PREFAULT_AHEAD`), and 16 hosts share 24 GiB here.
TOUCHED_BYTES_MAX = 8 << 30

#: Share of each store that is written to. The rest is for data of the nodes themselves.
TOUCHED_PART = 0.9


def missing() -> str:
    return ""


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    with ExitStack() as stack:
        daemons = stack.enter_context(on_hosts(hosts, store))
        workers = [Worker(daemon.socket, host) for daemon, host in zip(daemons, hosts, strict=True)]
        system = Hoplite(workers, hosts.memory)
        stack.callback(system.close)
        system.touch()
        yield [system]


class Hoplite:
    """Collectives by a worker on every host. The first host's worker is the root."""

    cases = frozenset((*CASES, ROUND_TRIP))

    def __init__(self, workers: Sequence[Worker], memory: Memory, name: str = "hoplite") -> None:
        self.name = name
        self._workers = workers
        self._memory = memory

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        if case == ROUND_TRIP:
            return self._round_trip(size, name)
        if case == "gather":
            return self._gather(size, name)
        if case == "broadcast":
            return self._broadcast(size, name, interval)
        return self._reduce(case, size, name, interval)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def touch(self) -> None:
        """Writes to all stores once, as far as memory allows."""
        for worker in self._workers:
            worker.ask("touch", part=TOUCHED_PART, most=TOUCHED_BYTES_MAX // len(self._workers))

    def _broadcast(self, size: int, name: str, interval: float | None) -> float:
        """One put on the first host, then a get on every other host."""
        first, *others = self._workers
        self._put([name], size, range(1))
        at = time.monotonic() + START_AHEAD_SECONDS
        late = delays("broadcast", len(self._workers), interval)
        for worker, delay in zip(others, late[1:], strict=True):
            worker.send("get", at=at + delay, id=name)
        seconds = self._last(others) - at
        self._check("broadcast", size, name, others)
        first.ask("delete", ids=[name])
        return seconds

    def _gather(self, size: int, name: str) -> float:
        """A put of a source on every host but the first, which gets all of them."""
        first = self._workers[0]
        sources = self._sources(name)[1:]
        self._put(sources, size, range(1, len(self._workers)))
        at = time.monotonic() + START_AHEAD_SECONDS
        seconds = float(first.ask("gather", at=at, ids=sources)["ended"]) - at
        self._check("gather", size, name, [first])
        first.ask("delete", ids=sources)
        return seconds

    def _reduce(self, case: str, size: int, name: str, interval: float | None) -> float:
        """Puts a source on every host. The first host asks for the sum. In an allreduce all others get it.

        With an interval, each host puts its source only when it arrives.
        """
        first, *others = self._workers
        sources = self._sources(name)
        hosts = range(len(self._workers))
        self._fill(size, hosts)
        if interval is None:
            self._put_filled(sources, hosts)
        puts = [None if interval is None else source for source in sources]
        late = delays(case, len(hosts), interval)
        at = time.monotonic() + START_AHEAD_SECONDS
        first.send(case, at=at, id=name, sources=sources, put=puts[0])
        holders = self._workers if case == "allreduce" else self._workers[:1]
        for worker, put, delay in zip(others, puts[1:], late[1:], strict=True):
            if case == "allreduce":
                worker.send("get", at=at + delay, id=name, put=put)
            elif put is not None:
                worker.send("put", at=at + delay, id=put)
        seconds = self._last(holders) - at
        if case == "reduce" and interval is not None:
            self._last(others)
        self._check(case, size, name, holders)
        first.ask("delete", ids=[name, *sources])
        return seconds

    def _round_trip(self, size: int, name: str) -> float:
        """A put on host 0, a get and a put under another name on host 1, and a get of that on host 0."""
        first, second = self._workers
        trips = round_trips(size)
        there = [f"{name}-there-{trip}" for trip in range(trips)]
        back = [f"{name}-back-{trip}" for trip in range(trips)]
        self._fill(size, range(1))
        second.send("echo", there=there, back=back)
        answer = first.ask("ping", there=there, back=back)
        second.receive()
        self._check(ROUND_TRIP, size, name, [first])
        first.ask("delete", ids=[*there, *back])
        return float(answer["ended"] - answer["began"]) / trips

    def _sources(self, name: str) -> list[str]:
        return [f"{name}-source-{index}" for index in range(len(self._workers))]

    def _put(self, ids: Sequence[str], size: int, hosts: range) -> None:
        """Puts an object on each of these hosts, with that host's content."""
        self._fill(size, hosts)
        self._put_filled(ids, hosts)

    def _fill(self, size: int, hosts: range) -> None:
        for host in hosts:
            self._workers[host].send("fill", size=size, seed=host, memory=self._memory.of(host)["source"])
        for host in hosts:
            self._workers[host].receive()

    def _put_filled(self, ids: Sequence[str], hosts: range) -> None:
        for host, id in zip(hosts, ids, strict=True):
            self._workers[host].ask("put", id=id)

    @staticmethod
    def _last(workers: Sequence[Worker]) -> float:
        """The time at which the last of these workers had its result."""
        return max([float(worker.receive()["ended"]) for worker in workers])

    def _check(self, case: str, size: int, name: str, holders: Sequence[Worker]) -> None:
        for worker in holders:
            worker.send("check")
        found = [one for worker in holders for one in worker.receive()["checksums"]]
        if found != expected(case, size, len(self._workers)):
            raise WrongContent(f"{name}: other bytes than must be")
