"""The ensemble of the lab's failures on Ray, without Ray: what becomes of a model that does not answer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("ray.serve")

import numpy as np

from lab.failure.on_ray import UNANSWERED_MAX, Ensemble, Vote

VOTE: Vote = ("host", np.zeros(1))


class Batch:
    """Stands for a reference to images."""


class Model:
    """Answers at once, or not until it is back."""

    def __init__(self, is_away: bool = False) -> None:
        self.is_away = is_away
        self.calls: list[tuple[asyncio.Future[Vote], Batch]] = []
        self.asked = 0

    def remote(self, batch: Batch) -> asyncio.Future[Vote]:
        answer: asyncio.Future[Vote] = asyncio.get_running_loop().create_future()
        self.asked += 1
        if self.is_away:
            self.calls.append((answer, batch))
        else:
            answer.set_result(VOTE)
        return answer

    def come_back(self) -> None:
        self.is_away = False
        for answer, _ in self.calls:
            answer.set_result(VOTE)
        self.calls.clear()


def test_a_model_that_is_away_keeps_few_batches_and_is_asked_again_when_it_is_back() -> None:
    away = Model(is_away=True)
    models: list[Any] = [Model(), away, Model()]

    async def rounds() -> None:
        ensemble = Ensemble(*models)
        batches = []
        for _ in range(2 * UNANSWERED_MAX):
            batch: Any = Batch()
            batches.append(weakref.ref(batch))
            assert await ensemble([batch]) == [VOTE, VOTE]
            del batch
        gc.collect()
        assert away.asked == UNANSWERED_MAX
        assert sum(batch() is not None for batch in batches) == UNANSWERED_MAX
        away.come_back()
        last: Any = Batch()
        await ensemble([last])
        # Of those that it missed, and that are decided, it is asked none.
        assert away.asked == UNANSWERED_MAX + 1

    asyncio.run(rounds())
