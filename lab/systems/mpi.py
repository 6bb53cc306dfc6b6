"""MPI's collectives as two systems: one with the library's defaults, one tuned by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

from lab.hosts import Hosts
from lab.report import progress
from lab.systems import CASES, ROUND_TRIP, System, WrongContent, delays, expected, round_trips
from lab.systems.mpi_launch import Library, launched
from lab.systems.mpi_tuning import Candidate, Candidates, Settings, Tuning
from lab.systems.training import train
from lab.worker import ANSWER_SECONDS, START_AHEAD_SECONDS, Driven, WorkerFailed

#: Most launches for one run. Sometimes a launch fails, or ranks hang in one of their first collectives or, on
#: a busy machine, in a later one.
LAUNCHES_MAX = 3

#: After a launch every case is tried with so many bytes. It may take this long, as connections are opened.
TRY_BYTES = 4 << 10
TRY_SECONDS = 20.0

Result = TypeVar("Result")


@contextmanager
def opened(
    libraries: Mapping[str, Library], hosts: Hosts, candidates: Candidates
) -> Iterator[Sequence[System]]:
    """``libraries`` are the launches by name. They differ in settings that are fixed when a library starts.

    The first has the library's defaults. The tuned system uses its ranks too, as other settings can be
    changed between runs.
    """
    with ExitStack() as stack:
        launches = {name: stack.enter_context(Ranks(library, hosts)) for name, library in libraries.items()}

        def run(case: str, size: int, candidate: Candidate, interval: float | None = None) -> float:
            return launches[candidate.launch].run(case, size, candidate.settings, interval)

        def train_with(size: int, compute: float, rounds: int, candidate: Candidate) -> list[float]:
            return launches[candidate.launch].train(size, compute, rounds, candidate.settings)

        name = next(iter(libraries.values())).name
        as_it_comes = Candidate(next(iter(libraries)))
        tuning = Tuning(name, len(hosts), hosts.network, candidates, run)
        yield [
            Mpi(name, run, lambda _case, _size: as_it_comes),
            TunedMpi(f"{name} (tuned)", run, tuning, train_with),
        ]


class StaggeredRun(Protocol):
    """Runs a case and size in one way, with or without an interval, and returns its seconds."""

    def __call__(
        self, case: str, size: int, candidate: Candidate, interval: float | None = None
    ) -> float: ...


class Mpi:
    """A library with the candidate that ``choose`` gives for a case and size."""

    cases = frozenset((*CASES, ROUND_TRIP))

    def __init__(self, name: str, run: StaggeredRun, choose: Callable[[str, int], Candidate]) -> None:
        self.name = name
        self._run = run
        self._choose = choose

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        return self._run(case, size, self._choose(case, size), interval)

    def close(self) -> None:
        """Does nothing, as the ranks end with ``opened``."""


class TunedMpi(Mpi):
    """A library with the best candidates. If they are not known yet for a case, they are searched first."""

    # Only algorithms of collectives are tuned.
    cases = frozenset(CASES)

    def __init__(
        self,
        name: str,
        run: StaggeredRun,
        tuning: Tuning,
        train: Callable[[int, float, int, Candidate], list[float]],
    ) -> None:
        super().__init__(name, run, tuning.best)
        self._tuning = tuning
        self._train = train

    def train(self, size: int, compute: float, rounds: int) -> list[float]:
        return self._train(size, compute, rounds, self._tuning.best("allreduce", size))

    def chosen(self, case: str, size: int) -> str:
        return self._tuning.best_name(case, size)


class Ranks:
    """The running ranks of a library. Rank 0, on host 0, is the root of every collective.

    Ranks that hang or end are launched again, and the run is repeated. The start of a library is not part of
    a collective's time.
    """

    def __init__(self, library: Library, hosts: Hosts) -> None:
        self._library = library
        self._hosts = hosts
        self._launch = ExitStack()
        self._ranks: list[Driven] = []
        self._settings: Settings = {}
        self._patience = ANSWER_SECONDS

    def __enter__(self) -> Ranks:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._launch.close()

    def run(self, case: str, size: int, settings: Settings, interval: float | None = None) -> float:
        """Seconds of one collective with these settings. The results are checked."""
        what = f"{case} of {size} bytes"
        return self._again(what, settings, lambda: self._once(case, size, settings, interval))

    def train(self, size: int, compute: float, rounds: int, settings: Settings) -> list[float]:
        """Seconds of each round of training with these settings."""

        def once() -> list[float]:
            self._use(settings)
            return train(self._ranks, size, compute, rounds, self._patience)

        return self._again(f"training of {size} bytes", settings, once)

    def _again(self, what: str, settings: Settings, once: Callable[[], Result]) -> Result:
        """Returns the result of ``once``. As long as it fails, the ranks are launched again."""
        for _ in range(LAUNCHES_MAX):
            try:
                return once()
            except WorkerFailed as failed:
                progress(f"{self._library.name}, {what}: {failed}; launching it anew")
            self._start()
        raise WorkerFailed(f"{self._library.name} fails in every {what} with {settings}")

    def _use(self, settings: Settings) -> None:
        if settings != self._settings:
            self._all("use", settings=settings)
            self._settings = settings

    def _start(self) -> None:
        """Launches the ranks, repeatedly if necessary, until each case works."""
        for attempt in range(1, LAUNCHES_MAX + 1):
            self._launch.close()
            self._settings = {}
            try:
                self._ranks = self._launch.enter_context(launched(self._library, self._hosts))
                self._patience = TRY_SECONDS
                for case in (*CASES, ROUND_TRIP) if len(self._ranks) == 2 else CASES:
                    self._once(case, TRY_BYTES, {}, None)
                self._patience = ANSWER_SECONDS
                return
            except WorkerFailed as failed:
                if attempt == LAUNCHES_MAX:
                    raise
                progress(f"{self._library.name}: {failed}; trying again")

    def _once(self, case: str, size: int, settings: Settings, interval: float | None) -> float:
        self._use(settings)
        for index, rank in enumerate(self._ranks):
            rank.send("prepare", case=case, size=size, seed=index, memory=self._hosts.memory.of(index))
        self._receive()
        before = self._hosts[0].link_bytes()
        seconds = self._round_trip(size) if case == ROUND_TRIP else self._collective(case, interval)
        self._require_traffic(case, size, before)
        self._check(case, size, self._holders(case))
        return seconds

    def _collective(self, case: str, interval: float | None) -> float:
        at = time.monotonic() + START_AHEAD_SECONDS
        for rank, delay in zip(self._ranks, delays(case, len(self._ranks), interval), strict=True):
            rank.send(case, at=at + delay)
        ended = self._receive()
        return max(float(ended[index]["ended"]) for index in self._holders(case)) - at

    def _round_trip(self, size: int) -> float:
        trips = round_trips(size)
        at = time.monotonic() + START_AHEAD_SECONDS
        answer = self._all("round_trip", at=at, trips=trips)[0]
        return (float(answer["ended"]) - float(answer["began"])) / trips

    def _all(self, call: str, **arguments: object) -> list[dict[str, float]]:
        for rank in self._ranks:
            rank.send(call, **arguments)
        return self._receive()

    def _receive(self) -> list[dict[str, float]]:
        return [rank.receive(self._patience) for rank in self._ranks]

    def _holders(self, case: str) -> range:
        """The ranks that must have a result at the end of the collective."""
        count = len(self._ranks)
        return {"broadcast": range(1, count), "allreduce": range(count)}.get(case, range(1))

    def _check(self, case: str, size: int, holders: range) -> None:
        wanted = expected(case, size, len(self._ranks))
        for index in holders:
            # A gather's root also has its own source, before the others.
            self._ranks[index].send("check", pieces=len(self._ranks) if case == "gather" else 1)
        answers = [self._ranks[index].receive(self._patience) for index in holders]
        found = [value for answer in answers for value in answer["checksums"]]
        if found[-len(wanted) :] != wanted:
            raise WrongContent(f"{case} of {size} bytes: a rank has other bytes than it must have")

    def _require_traffic(self, case: str, size: int, before: Mapping[str, int]) -> None:
        """Checks that host 0 sent or received at least one object. Otherwise the ranks bypass the network."""
        after = self._hosts[0].link_bytes()
        crossed = max(after[way] - before[way] for way in after)
        if len(self._ranks) > 1 and crossed < size:
            raise RuntimeError(f"{case} of {size} bytes: only {crossed} bytes crossed the link of host 0")
