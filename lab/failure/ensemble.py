"""Serving by an ensemble: a frontend broadcasts each batch to all models; a majority's answers end the step.

``Frontend`` is the driver's end; ``python -m lab.failure.ensemble SOCKET MODEL FIRST_STEP`` is a model.
"""

from __future__ import annotations

import sys
import time

import hoplite
import numpy as np

#: A batch: images, height, width, colours. 12.6 MB.
SHAPE = (64, 256, 256, 3)

#: Stands for the model's computation, which would take both of the machine's cores from the network.
COMPUTE_SECONDS = 0.02

#: An image's answer is the sum of every so many'th byte of it: shows that its bytes have come.
STRIDE = 251

#: A batch and its answers are deleted when this many further ones have been answered.
KEPT_STEPS = 3

#: Longest that a step may take, and that a model waits for a batch before it takes the frontend for dead.
STEP_SECONDS = 60.0


class WrongAnswer(RuntimeError):
    """A model answered something else than it should."""


class Frontend:
    """Puts batches and counts answers, over one client of its host's node."""

    name = "ensemble"
    title = "Ensemble serving: broadcast of 12.6 MB, a majority's answers"

    def __init__(self, socket: str, models: int) -> None:
        self._client = hoplite.connect(socket)
        self._models = models
        self._images = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)

    def prepare(self, step: int) -> None:
        # Its first byte tells a batch from all others.
        self._images[:, 0, 0, 0] = step % 256

    def step(self, step: int) -> int:
        """One batch, from its put to the majority's answers; returns how many nodes were alive."""
        self._client.put(self._images, _batch(step), timeout=STEP_SECONDS)
        alive = len(self._client.status(timeout=STEP_SECONDS).members) - 1
        answers = [_answer(step, model) for model in range(self._models)]
        ready, _ = self._client.wait(answers, alive // 2 + 1, timeout=STEP_SECONDS)
        if len(ready) <= alive // 2:
            raise TimeoutError(f"step {step}: {len(ready)} of {alive} models answered in {STEP_SECONDS} s")
        expected = answer_to(self._images)
        for id in ready:
            if not np.array_equal(self._client.get(id, timeout=STEP_SECONDS), expected):
                raise WrongAnswer(f"step {step}: {id.name}")
        return alive

    def tidy(self, step: int) -> None:
        old = step - KEPT_STEPS
        if old >= 0:
            self._client.delete([_batch(old), *(_answer(old, model) for model in range(self._models))])

    def arguments(self, participant: int, step: int) -> list[str]:
        """What a model that starts now is told."""
        return ["lab.failure.ensemble", str(participant - 1), str(step)]

    def close(self) -> None:
        self._client.close()


def _batch(step: int) -> str:
    return f"batch-{step}"


def _answer(step: int, model: int) -> str:
    return f"answer-{step}-{model}"


def answer_to(images: np.ndarray) -> np.ndarray:
    answer: np.ndarray = images.reshape(len(images), -1)[:, ::STRIDE].sum(axis=1, dtype=np.int64)
    return answer


def serve(socket: str, model: int, step: int) -> None:
    """A model: answers batch after batch until no more come."""
    with hoplite.connect(socket) as client:
        while True:
            try:
                images = client.get(_batch(step), timeout=STEP_SECONDS)
                time.sleep(COMPUTE_SECONDS)
                client.put(answer_to(images), _answer(step, model), timeout=STEP_SECONDS)
            except hoplite.ObjectDeleted:
                # The others went ahead: a majority answered without us.
                pass
            step += 1


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
