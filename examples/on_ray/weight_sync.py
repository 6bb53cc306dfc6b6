"""Weights of a trainer for inference engines that join and leave: each gets the newest complete version.

    python -m examples.on_ray.weight_sync

A version is a dictionary of named tensors, some hundred. It is published by its reference alone; an engine
that was busy, or comes later, gets the newest and never sees those between.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import hoplite.ray
import ray

from examples.on_ray.options import cluster, parser, rounds
from examples.on_ray.weights import add_weight_options, version_of, weights_of


class Board:
    """Where the newest version is announced."""

    def __init__(self) -> None:
        self._version = 0
        self._newest: list[ray.ObjectRef] = []
        self._changed = asyncio.Condition()

    async def publish(self, version: int, weights: list[ray.ObjectRef]) -> None:
        """From now on these are the newest. In a list: the reference alone comes here."""
        async with self._changed:
            self._version, self._newest = version, weights
            self._changed.notify_all()

    async def newest(self, after: int) -> list[ray.ObjectRef]:
        """Waits for a version that is newer than `after`."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._version > after)
            return self._newest


class Engine:
    """Would answer requests by the newest weights it has."""

    def __init__(self, board: Any) -> None:
        self._board = board
        self._version = 0

    def refresh(self, least: int) -> int:
        """Gets the newest weights until they are of version `least` or a newer one, which is returned."""
        while self._version < least:
            (weights,) = ray.get(self._board.newest.remote(self._version))
            self._version = version_of(ray.get(weights))
        return self._version


def main() -> None:
    """Publish versions; every fourth round the oldest engine leaves, and two rounds later another joins."""
    options = parser(__doc__, rounds=12)
    add_weight_options(options)
    publish(options.parse_args())


def publish(options: argparse.Namespace) -> None:
    """The trainer."""
    hoplite.ray.init(**cluster(options))
    board = ray.remote(Board).options(num_cpus=0).remote()
    engines = [_engine(board) for _ in range(options.workers)]
    for number in rounds(options):
        version = number + 1
        weights = ray.put(weights_of(options, version))
        ray.get(board.publish.remote(version, [weights]))
        if number % 4 == 3 and not options.steady:
            ray.kill(engines.pop(0))
        if number % 4 == 1 and len(engines) < options.workers:
            engines.append(_engine(board))
        reached = ray.get([engine.refresh.remote(version) for engine in engines])
        assert set(reached) == {version}, reached
    print(f"all {len(engines)} engines have version {version}")
    hoplite.ray.shutdown()


def _engine(board: Any) -> Any:
    return ray.remote(Engine).options(num_cpus=1, scheduling_strategy="SPREAD").remote(board)


if __name__ == "__main__":
    main()
