"""Synchronous data-parallel training on a fixed group of ranks: a mean of all gradients, then a step.

This is the counterpart of ``examples.on_ray.sync_training``, with a stand-in for a neural network. As in
programs with ``torch.distributed`` or MPI, the gradient is summed in the array that it was computed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from lab.systems import WrongContent
from lab.worker import START_AHEAD_SECONDS, Driven


@runtime_checkable
class Trains(Protocol):
    """A system that can also be used for training."""

    name: str

    def train(self, size: int, compute: float, rounds: int) -> list[float]:
        """The seconds of each round with ``size`` bytes of parameters and ``compute`` s for a gradient."""
        ...


def train(ranks: Sequence[Driven], size: int, compute: float, rounds: int, patience: float) -> list[float]:
    """Makes all ranks train. A round lasts until the last rank has made its step."""
    at = time.monotonic() + START_AHEAD_SECONDS
    for rank in ranks:
        rank.send("train", at=at, size=size, compute=compute, rounds=rounds)
    answers = [rank.receive(patience) for rank in ranks]
    if any(answer[end] != -rounds for answer in answers for end in ("least", "most")):
        raise WrongContent(f"after {rounds} steps by gradients of 1 parameters are not {-rounds}")
    ended = [at, *map(max, zip(*(answer["ended"] for answer in answers), strict=True))]
    return [after - before for before, after in pairwise(ended)]


def rank_trains(
    parameters: np.ndarray,
    gradient: np.ndarray,
    compute: float,
    rounds: int,
    step: Callable[[], None],
) -> dict[str, Any]:
    """One rank's part. ``step`` sums the gradient over all ranks and steps by the mean."""
    ended = []
    for _ in range(rounds):
        _compute(gradient, compute)
        step()
        ended.append(time.monotonic())
    return {"ended": ended, "least": float(parameters.min()), "most": float(parameters.max())}


def _compute(gradient: np.ndarray, seconds: float) -> None:
    """Sleeps in place of computing a gradient, whose elements are all 1. The seconds include writing it."""
    began = time.monotonic()
    gradient.fill(1)
    time.sleep(max(seconds - (time.monotonic() - began), 0.0))
