"""One process of Gloo's group: ``python -m lab.systems.gloo_rank``, driven line by line."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as group

from lab.memory import mapped
from lab.systems import ROUND_TRIP
from lab.systems.peers import START_SECONDS, answers
from lab.systems.training import rank_trains
from lab.worker import CALL_SECONDS, checksum, pattern, serve


class Calls:
    """The commands of a rank. Rank 0 is the root of collectives with a root."""

    def __init__(self) -> None:
        self._tensor = torch.empty(0)
        self._gathered: list[torch.Tensor] = []
        self._results: list[torch.Tensor] = []

    def join(self, address: str, port: int, rank: int, ranks: int) -> dict[str, Any]:
        self._rank, self._ranks = rank, ranks
        group.init_process_group(
            "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=max(CALL_SECONDS, START_SECONDS)),
        )
        return {}

    def prepare(self, case: str, size: int, memory: dict[str, str]) -> dict[str, Any]:
        """Makes the arrays. Gloo sends from the source's memory, and makes a sum in place there."""
        root = self._rank == 0
        if case in ("broadcast", ROUND_TRIP) and not root:
            self._tensor = _zeros(memory["result"], size)
        else:
            self._tensor = torch.from_numpy(pattern(size, self._rank, mapped(memory["source"], size)))
        self._gathered = []
        if case == "gather" and root:
            self._gathered = list(_zeros(memory["result"], size * self._ranks).split(size // 4))
        holds = {"broadcast": not root, "reduce": root, "allreduce": True, ROUND_TRIP: root}
        self._results = [self._tensor] if holds.get(case) else self._gathered[1:]
        if case == ROUND_TRIP and root:
            # A separate buffer, so that the received bytes can be told from the sent ones.
            self._results = [_zeros(memory["result"], size)]
        return {}

    def run(self, case: str, trips: int) -> dict[str, Any]:
        """Runs a case. ``trips``: the number of round trips."""
        if case == ROUND_TRIP:
            self._round_trips(trips)
        elif case == "broadcast":
            group.broadcast(self._tensor, 0)
        elif case == "gather":
            group.gather(self._tensor, self._gathered or None, 0)
        elif case == "reduce":
            group.reduce(self._tensor, 0)
        else:
            group.all_reduce(self._tensor)
        return {"ended": time.monotonic()}

    def _round_trips(self, trips: int) -> None:
        for _ in range(trips):
            if self._rank == 0:
                group.send(self._tensor, 1)
                group.recv(self._results[0], 1)
            else:
                group.recv(self._tensor, 0)
                group.send(self._tensor, 0)

    def train(self, size: int, compute: float, rounds: int) -> dict[str, Any]:
        parameters, gradient = torch.zeros(size // 4), torch.zeros(size // 4)

        def step() -> None:
            group.all_reduce(gradient)
            parameters.sub_(gradient, alpha=1 / self._ranks)

        return rank_trains(parameters.numpy(), gradient.numpy(), compute, rounds, step)

    def check(self) -> dict[str, Any]:
        """The checksums of this rank's results."""
        return {"checksums": [checksum(result.numpy()) for result in self._results]}


def _zeros(path: str, size: int) -> torch.Tensor:
    array = mapped(path, size)
    array.fill(0)
    return torch.from_numpy(array)


def main() -> None:
    with answers() as pipe:
        serve(Calls(), sys.stdin, pipe)
        group.destroy_process_group()


if __name__ == "__main__":
    main()
