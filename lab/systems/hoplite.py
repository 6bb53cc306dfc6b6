"""Hoplite: a daemon and a client on every host."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lab.daemons import on_hosts
from lab.hosts import Hosts
from lab.systems import CASES, System, WrongContent
from lab.worker import START_AHEAD_SECONDS, Worker, checksum, pattern, together


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
        expected = first.ask("fill", size=size, seed=size)["checksum"]
        first.ask("put", id=name)
        seconds = together(others, "get", id=name)
        _check(others, [expected], f"{name}: a receiver holds other bytes than were put")
        first.ask("delete", ids=[name])
        return seconds

    def _gather(self, size: int, name: str) -> float:
        """A source put on every host but the first, which gets them all."""
        first, *others = self._workers
        sources, expected = _put_sources(others, size, name)
        seconds = together([first], "gather", ids=sources)
        _check([first], expected, f"{name}: the first host holds other bytes than were put")
        first.ask("delete", ids=sources)
        return seconds

    def _reduce(self, size: int, name: str) -> float:
        """A source put on every host, then their sum, asked for and got on the first."""
        first = self._workers[0]
        sources, _ = _put_sources(self._workers, size, name)
        seconds = together([first], "reduce", id=name, sources=sources)
        _check([first], [_sum(size, len(sources))], f"{name}: the result is not the sum of its sources")
        first.ask("delete", ids=[name, *sources])
        return seconds

    def _allreduce(self, size: int, name: str) -> float:
        """A source put on every host; one host asks for their sum, and all get it."""
        first, *others = self._workers
        sources, _ = _put_sources(self._workers, size, name)
        at = time.monotonic() + START_AHEAD_SECONDS
        first.send("allreduce", at=at, id=name, sources=sources)
        for worker in others:
            worker.send("get", at=at, id=name)
        seconds = max(float(worker.receive()["ended"]) for worker in self._workers) - at
        _check(self._workers, [_sum(size, len(sources))], f"{name}: a result is not the sum of its sources")
        first.ask("delete", ids=[name, *sources])
        return seconds


def _put_sources(workers: Sequence[Worker], size: int, name: str) -> tuple[list[str], list[int]]:
    """A source by every worker: their ids and checksums."""
    sources = [f"{name}-source-{index}" for index in range(len(workers))]
    for index, worker in enumerate(workers):
        worker.send("fill", size=size, seed=index)
    checksums = [int(worker.receive()["checksum"]) for worker in workers]
    for worker, source in zip(workers, sources, strict=True):
        worker.ask("put", id=source)
    return sources, checksums


def _check(workers: Sequence[Worker], expected: Sequence[int], otherwise: str) -> None:
    for worker in workers:
        worker.send("check")
    if any([worker.receive()["checksums"] != expected for worker in workers]):
        raise WrongContent(otherwise)


def _sum(size: int, count: int) -> int:
    """The checksum of what the sources of ``count`` workers add up to."""
    return checksum(sum((pattern(size, index) for index in range(1, count)), start=pattern(size, 0)))
