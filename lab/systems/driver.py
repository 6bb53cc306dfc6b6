"""A peer whose collectives are done by one user program in host 0: Ray's driver, Dask's client.

Such a system has several ways to do a collective, none of them built in. The fastest one depends on the size
and the hosts. So the first run of each case and size tries all ways, untimed, and later runs use the fastest.

Between runs all its processes are stopped (SIGSTOP). While idle, the processes of eight hosts take 6 % (Dask)
or 27 % (Ray) of a core, which would slow down the system under measurement. The preparation of a run resumes
all processes, and makes and puts objects on every host. It is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from lab.processes import pause, resume
from lab.report import progress, size_text
from lab.systems import ROUND_TRIP, SEARCH_BYTES_MAX, WrongContent, delays, expected, round_trips
from lab.worker import START_AHEAD_SECONDS, Process

#: A part of the names of ways that need all receivers at once.
STAGGERED_NEVER = "replicate"

#: Runs of each way before one is chosen. The first ones open connections and fault in memory.
TRIALS = 3


class DriverSystem:
    """``daemons`` are ids of the peer's background processes, ``ways`` the driver's ways for a case."""

    def __init__(
        self,
        name: str,
        hosts: int,
        driver: Process,
        daemons: Sequence[int],
        ways: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        self.cases = frozenset(ways)
        self._hosts = hosts
        self._driver = driver
        self._ways = ways
        self._processes = [*daemons, driver.pid]
        self._paused = pause(self._processes)
        self._searched: dict[tuple[str, int, float | None], str] = {}
        self._chosen: dict[tuple[str, int], str] = {}

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        self._resume()
        try:
            key = (case, min(size, SEARCH_BYTES_MAX), interval)
            if key not in self._searched:
                self._searched[key] = self._fastest(*key)
            self._chosen[case, size] = self._searched[key]
            return self._once(case, self._searched[key], size, interval)
        finally:
            self._paused = pause(self._processes)

    def chosen(self, case: str, size: int) -> str:
        """The way that was used last."""
        return self._chosen[case, size]

    def close(self) -> None:
        self._resume()
        self._driver.close()

    def _resume(self) -> None:
        resume(self._paused)
        self._paused = []

    def _fastest(self, case: str, size: int, interval: float | None) -> str:
        ways = self._ways[case]
        if interval is not None:
            ways = [way for way in ways if STAGGERED_NEVER not in way]
        if len(ways) == 1:
            return ways[0]
        took = {way: min(self._once(case, way, size, interval) for _ in range(TRIALS)) for way in ways}
        told = ", ".join(f"{way} {seconds:.4f} s" for way, seconds in took.items())
        best = min(took, key=took.__getitem__)
        progress(f"{self.name}, {case} of {size_text(size)}: {told}; goes on with {best}")
        return best

    def _once(self, case: str, way: str, size: int, interval: float | None) -> float:
        trips = round_trips(size)
        self._driver.ask("prepare", case=case, size=size, staggered=interval is not None)
        at = time.monotonic() + START_AHEAD_SECONDS
        late = None if interval is None else delays(case, self._hosts, interval)
        answer = self._driver.ask("run", case=case, way=way, start=at, late=late, trips=trips)
        seconds = float(answer["ended"]) - at
        if self._driver.ask("check")["checksums"] != expected(case, size, self._hosts):
            raise WrongContent(f"{self.name}, {case} of {size} bytes by {way}: other bytes than must be")
        self._driver.ask("clear")
        return seconds / trips if case == ROUND_TRIP else seconds
