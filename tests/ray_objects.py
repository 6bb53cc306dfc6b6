"""Objects and an actor that several tests of hoplite.ray use."""

from __future__ import annotations

import asyncio

import numpy as np

LENGTH = 1 << 19


def large(seed: int = 0) -> np.ndarray:
    """An array of 2 MiB."""
    return np.random.default_rng(seed).standard_normal(LENGTH, np.float32)


class Gate:
    """The class of an actor at which calls wait until it is opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    async def passed(self) -> None:
        await self._open.wait()

    async def value(self, seed: int) -> np.ndarray:
        await self.passed()
        return large(seed)

    async def open(self) -> None:
        self._open.set()
