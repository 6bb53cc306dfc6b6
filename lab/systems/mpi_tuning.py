"""Searches the best settings of an MPI library for each case, size, number of hosts, and links.

The results stay in ``lab/results/tuned.json``. Without that file the search runs again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.network import Network
from lab.report import median, progress, size_text
from lab.results import RESULTS
from lab.systems import SEARCH_BYTES_MAX

#: Values of a library's control variables. Empty: the defaults.
Settings = dict[str, int]


@dataclass(frozen=True)
class Candidate:
    """One way to do a case: which launch of the library does it, and with which settings."""

    launch: str
    settings: Settings = field(default_factory=dict)


#: For a case, number of hosts: what to try, by names for people; the first is the library's own choice.
Candidates = Callable[[str, int], Mapping[str, Candidate]]

#: Seconds of a case and size, done in one way.
Run = Callable[[str, int, Candidate], float]

FILE = RESULTS / "tuned.json"

#: Every candidate runs so often, the first time uncounted, as connections are opened then.
FIRST_RUNS = 2

#: The fastest of them run so often again, and the best median is kept.
FINALISTS = 3
FINAL_RUNS = 3


class Tuning:
    """The best candidates for one library on so many hosts with such a network."""

    def __init__(self, library: str, hosts: int, network: Network, candidates: Candidates, run: Run) -> None:
        self._library = library
        self._hosts = hosts
        self._network = f"{hosts} hosts x {network}"
        self._candidates = candidates
        self._run = run
        self._known: dict[str, Any] = _read()

    def best(self, case: str, size: int) -> Candidate:
        return self._candidates(case, self._hosts)[self.best_name(case, size)]

    def best_name(self, case: str, size: int) -> str:
        size = min(size, SEARCH_BYTES_MAX)
        key = f"{self._library}, {case}, {size_text(size)}, {self._network}"
        candidates = self._candidates(case, self._hosts)
        known: str = self._known.get(key, {}).get("best", "")
        return known if known in candidates else self._search(key, case, size, candidates)

    def _search(self, key: str, case: str, size: int, candidates: Mapping[str, Candidate]) -> str:
        first = {}
        for name, candidate in candidates.items():
            first[name] = [self._run(case, size, candidate) for _ in range(FIRST_RUNS)][-1]
        finalists = sorted(first, key=lambda name: first[name])[:FINALISTS]
        # They take turns, so that a disturbance of the machine meets all of them.
        turns = [
            {name: self._run(case, size, candidates[name]) for name in finalists} for _ in range(FINAL_RUNS)
        ]
        final = {name: median(turn[name] for turn in turns) for name in finalists}
        best = min(final, key=lambda name: final[name])
        own = next(iter(candidates))
        progress(f"{key}: best is {best}, {final[best]:.4f} s; {own} {first[own]:.4f} s")
        self._known = _read()
        self._known[key] = {"best": best, **asdict(candidates[best]), "seconds": first | final}
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(json.dumps(self._known, indent=1) + "\n")
        return best


def _read() -> dict[str, Any]:
    """The current content of the file, which each library writes to."""
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found
