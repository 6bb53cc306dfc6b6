"""MPI's collectives as systems: once as a library chooses by itself, once tuned by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from lab.hosts import Hosts
from lab.systems import CASES, System, WrongContent, expected
from lab.systems.mpi_launch import Library, launched
from lab.systems.mpi_tuning import Candidate, Candidates, Run, Settings, Tuning
from lab.worker import START_AHEAD_SECONDS, Driven


@contextmanager
def opened(
    libraries: Mapping[str, Library], hosts: Hosts, candidates: Candidates
) -> Iterator[Sequence[System]]:
    """``libraries`` are the launches by name: what a candidate can set when a library starts only.

    The first is the library as it comes. Its ranks serve the tuned system, too, as the other settings
    are changed between runs.
    """
    with ExitStack() as stack:
        launches = {
            name: Ranks(stack.enter_context(launched(library, hosts)), hosts)
            for name, library in libraries.items()
        }

        def run(case: str, size: int, candidate: Candidate) -> float:
            return launches[candidate.launch].run(case, size, candidate.settings)

        name = next(iter(libraries.values())).name
        as_it_comes = Candidate(next(iter(libraries)))
        tuning = Tuning(name, len(hosts), candidates, run)
        yield [
            Mpi(name, run, lambda _case, _size: as_it_comes),
            TunedMpi(f"{name} (tuned)", run, tuning),
        ]


class Mpi:
    """A library with the candidate that ``choose`` gives for a case and size."""

    cases = frozenset(CASES)

    def __init__(self, name: str, run: Run, choose: Callable[[str, int], Candidate]) -> None:
        self.name = name
        self._run = run
        self._choose = choose

    def run(self, case: str, size: int, name: str) -> float:
        return self._run(case, size, self._choose(case, size))

    def close(self) -> None:
        """Nothing to do: the ranks end with ``opened``."""


class TunedMpi(Mpi):
    """A library with the best candidates that were found; what is not known yet is searched first."""

    def __init__(self, name: str, run: Run, tuning: Tuning) -> None:
        super().__init__(name, run, tuning.best)
        self._tuning = tuning

    def chosen(self, case: str, size: int) -> str:
        return self._tuning.best_name(case, size)


class Ranks:
    """The running ranks of a library; rank 0, on host 0, is every collective's root."""

    def __init__(self, ranks: Sequence[Driven], hosts: Hosts) -> None:
        self._ranks = ranks
        self._hosts = hosts
        self._settings: Settings = {}

    def run(self, case: str, size: int, settings: Settings) -> float:
        """Seconds that one collective took with these settings; its results have been checked."""
        if settings != self._settings:
            self._all("use", settings=settings)
            self._settings = settings
        for index, rank in enumerate(self._ranks):
            rank.send("prepare", case=case, size=size, seed=index)
        for rank in self._ranks:
            rank.receive()
        before = self._hosts[0].link_bytes()
        at = time.monotonic() + START_AHEAD_SECONDS
        ended = self._all(case, at=at)
        self._require_traffic(case, size, before)
        holders = self._holders(case)
        self._check(case, size, holders)
        return max(float(ended[index]["ended"]) for index in holders) - at

    def _all(self, call: str, **arguments: object) -> list[dict[str, float]]:
        for rank in self._ranks:
            rank.send(call, **arguments)
        return [rank.receive() for rank in self._ranks]

    def _holders(self, case: str) -> range:
        """The ranks that must have a result before the collective is over."""
        count = len(self._ranks)
        return {"broadcast": range(1, count), "allreduce": range(count)}.get(case, range(1))

    def _check(self, case: str, size: int, holders: range) -> None:
        wanted = expected(case, size, len(self._ranks))
        for index in holders:
            # A gather's root has its own source, too, before the others.
            self._ranks[index].send("check", pieces=len(self._ranks) if case == "gather" else 1)
        found = [value for index in holders for value in self._ranks[index].receive()["checksums"]]
        if found[-len(wanted) :] != wanted:
            raise WrongContent(f"{case} of {size} bytes: a rank has other bytes than it must have")

    def _require_traffic(self, case: str, size: int, before: Mapping[str, int]) -> None:
        """Host 0 sends or receives a whole object at least, else the ranks talk past the network."""
        after = self._hosts[0].link_bytes()
        crossed = max(after[way] - before[way] for way in after)
        if len(self._ranks) > 1 and crossed < size:
            raise RuntimeError(f"{case} of {size} bytes: only {crossed} bytes crossed the link of host 0")
