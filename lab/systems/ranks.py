"""A fixed group of processes, one on every host. All of them make each call of a collective."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from lab.memory import Memory
from lab.systems import ROUND_TRIP, WrongContent, delays, expected, round_trips
from lab.systems.training import train
from lab.worker import ANSWER_SECONDS, START_AHEAD_SECONDS, Process


class Ranks:
    """Commands of ``ranks``: ``prepare``, ``run``, ``check``, ``train``. Between calls they block."""

    def __init__(self, name: str, cases: Collection[str], ranks: Sequence[Process], memory: Memory) -> None:
        self.name = name
        self.cases = frozenset(cases)
        self._ranks = ranks
        self._memory = memory

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        for index, rank in enumerate(self._ranks):
            rank.send("prepare", case=case, size=size, memory=self._memory.of(index))
        for rank in self._ranks:
            rank.receive()
        at = time.monotonic() + START_AHEAD_SECONDS
        trips = round_trips(size)
        for rank, delay in zip(self._ranks, delays(case, len(self._ranks), interval), strict=True):
            rank.send("run", at=at + delay, case=case, trips=trips)
        answers = [rank.receive() for rank in self._ranks]
        ended = [float(answer["ended"]) for answer in answers]
        for rank in self._ranks:
            rank.send("check")
        checksums = [rank.receive()["checksums"] for rank in self._ranks]
        found = [one for of_rank in checksums for one in of_rank]
        if found != expected(case, size, len(self._ranks)):
            raise WrongContent(f"{name}: other bytes than must be")
        if case == ROUND_TRIP:
            return (ended[0] - float(answers[0]["began"])) / trips
        # Only ranks with a result count, as a sender is done when its bytes are under way.
        return max(when for when, of_rank in zip(ended, checksums, strict=True) if of_rank) - at

    def train(self, size: int, compute: float, rounds: int) -> list[float]:
        return train(self._ranks, size, compute, rounds, ANSWER_SECONDS)

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
