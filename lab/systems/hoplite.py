"""Hoplite: a daemon and a client on every host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lab.daemons import on_hosts
from lab.hosts import Hosts
from lab.systems import CASES, System, WrongContent, expected
from lab.worker import START_AHEAD_SECONDS, Worker, together


def missing() -> str:
    return ""


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    with ExitStack() as stack:
        daemons = stack.enter_context(on_hosts(hosts, store))
        system = Hoplite([Worker(daemon.socket, host) for daemon, host in zip(daemons, hosts, strict=True)])
        stack.callback(system.close)
        yield [system]


class Hoplite:
    """Collectives by a worker on every host, the first one being host 0's."""

    name = "hoplite"
    cases = frozenset(CASES)

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def run(self, case: str, size: int, name: str) -> float:
        cases = {
            "broadcast": self._broadcast,
            "gather": self._gather,
            "reduce": self._reduce,
            "allreduce": self._allreduce,
        }
        return cases[case](size, name)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _broadcast(self, size: int, name: str) -> float:
        """One put on the first host, then a get on every other."""
        first, *others = self._workers
        self._put([name], size, range(1))
        seconds = together(others, "get", id=name)
        self._check("broadcast", size, name, others)
        first.ask("delete", ids=[name])
        return seconds

    def _gather(self, size: int, name: str) -> float:
        """A source put on every host but the first, which gets them all."""
        first = self._workers[0]
        sources = self._sources(name)[1:]
        self._put(sources, size, range(1, len(self._workers)))
        seconds = together([first], "gather", ids=sources)
        self._check("gather", size, name, [first])
        first.ask("delete", ids=sources)
        return seconds

    def _reduce(self, size: int, name: str) -> float:
        """A source put on every host, then their sum, asked for and got on the first."""
        first = self._workers[0]
        sources = self._sources(name)
        self._put(sources, size, range(len(self._workers)))
        seconds = together([first], "reduce", id=name, sources=sources)
        self._check("reduce", size, name, [first])
        first.ask("delete", ids=[name, *sources])
        return seconds

    def _allreduce(self, size: int, name: str) -> float:
        """A source put on every host; one host asks for their sum, and all get it."""
        first, *others = self._workers
        sources = self._sources(name)
        self._put(sources, size, range(len(self._workers)))
        at = time.monotonic() + START_AHEAD_SECONDS
        first.send("allreduce", at=at, id=name, sources=sources)
        for worker in others:
            worker.send("get", at=at, id=name)
        seconds = max(float(worker.receive()["ended"]) for worker in self._workers) - at
        self._check("allreduce", size, name, self._workers)
        first.ask("delete", ids=[name, *sources])
        return seconds

    def _sources(self, name: str) -> list[str]:
        return [f"{name}-source-{index}" for index in range(len(self._workers))]

    def _put(self, ids: Sequence[str], size: int, hosts: range) -> None:
        """An object by the worker of each of these hosts, with that host's content."""
        for host in hosts:
            self._workers[host].send("fill", size=size, seed=host)
        for host in hosts:
            self._workers[host].receive()
        for host, id in zip(hosts, ids, strict=True):
            self._workers[host].ask("put", id=id)

    def _check(self, case: str, size: int, name: str, holders: Sequence[Worker]) -> None:
        for worker in holders:
            worker.send("check")
        found = [one for worker in holders for one in worker.receive()["checksums"]]
        if found != expected(case, size, len(self._workers)):
            raise WrongContent(f"{name}: other bytes than must be")
