"""Gloo, by way of PyTorch's ``torch.distributed`` on CPU tensors: a process of a fixed group on every host.

Its collectives are built in; the group must be whole, and each call is made by all of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lab.hosts import Hosts
from lab.systems import CASES, ROUND_TRIP, System, WrongContent, delays, expected, peers, round_trips
from lab.worker import START_AHEAD_SECONDS, Process

PORT = 7070

SETTINGS = {
    # Whose address it binds to: by the host's name it would find none, and warns of that.
    "GLOO_SOCKET_IFNAME": "eth0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # As many hosts as there are share the cores.
    "OMP_NUM_THREADS": "1",
}


def missing() -> str:
    return peers.missing("torch")


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """``store`` is Hoplite's: Gloo moves what is in its callers' arrays."""
    with ExitStack() as stack:
        ranks: list[Process] = []
        for host in hosts:
            rank = Process(peers.python("lab.systems.gloo_rank"), host, peers.START_SECONDS, SETTINGS)
            stack.callback(rank.close)
            ranks.append(rank)
        for index, rank in enumerate(ranks):
            rank.send("join", address=hosts[0].address, port=PORT, rank=index, ranks=len(ranks))
        for rank in ranks:
            rank.receive()
        yield [Gloo(ranks)]


class Gloo:
    """The processes wait for their next call in a blocking read."""

    name = "gloo"
    cases = frozenset((*CASES, ROUND_TRIP))

    def __init__(self, ranks: Sequence[Process]) -> None:
        self._ranks = ranks

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        for rank in self._ranks:
            rank.send("prepare", case=case, size=size)
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
        # Only of those that get something: a sender is done when its bytes are on their way.
        return max(when for when, of_rank in zip(ended, checksums, strict=True) if of_rank) - at

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
