"""Tests the ensemble of the lab's failures on Ray, without Ray: the case of a model that does not answer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("ray.serve")

import numpy as np

from lab.failure.on_ray import UNANSWERED_MAX, Ensemble

#: Most rounds until a model that is back is asked again.
ROUNDS_MAX = 10

Answer = asyncio.Future[tuple[str, np.ndarray]]


class Batch:
    """A stand-in for a reference to images."""


def ensemble_of(*models: Model) -> Any:
    """An ensemble that treats these models and batches as Ray's."""
    handles: Any = models
    return Ensemble(*handles)


class Model:
    """A model that answers at once, or only when it is back."""

    def __init__(self, host: str, is_away: bool = False) -> None:
        self._vote = host, np.zeros(1)
        self.is_away = is_away
        self.calls: list[tuple[Answer, Batch]] = []
        self.asked = 0

    def remote(self, batch: Batch) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        self.asked += 1
        if self.is_away:
            self.calls.append((answer, batch))
        else:
            answer.set_result(self._vote)
        return answer

    def come_back(self) -> None:
        self.is_away = False
        for answer, _ in self.calls:
            answer.set_result(self._vote)
        self.calls.clear()


def test_an_absent_model_holds_few_batches_and_is_asked_again() -> None:
    away = Model("away", is_away=True)

    async def rounds() -> None:
        ensemble = ensemble_of(Model("one"), away, Model("other"))
        batches = []
        for _ in range(2 * UNANSWERED_MAX):
            batch = Batch()
            batches.append(weakref.ref(batch))
            votes, heard_of = await ensemble([batch])
            assert len(votes) == 2
            assert heard_of == ["one", "other"]
            del batch
        gc.collect()
        assert away.asked == UNANSWERED_MAX
        assert sum(batch() is not None for batch in batches) == UNANSWERED_MAX
        away.come_back()
        heard_of = []
        for _ in range(ROUNDS_MAX):
            if away.asked == UNANSWERED_MAX:
                heard_of += (await ensemble([Batch()]))[1]
        # The model is not asked for batches that it missed and that are decided.
        assert away.asked == UNANSWERED_MAX + 1
        assert "away" in heard_of

    asyncio.run(rounds())
