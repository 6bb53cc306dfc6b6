"""Serving by an ensemble: a frontend broadcasts each batch to all models, and waits for a majority's answers.

``Frontend`` runs in the driver. ``python -m lab.failure.ensemble SOCKET MODEL FIRST_STEP`` is a model.
"""

from __future__ import annotations

import sys
import time

import hoplite
import numpy as np

#: Shape of a batch: images, height, width, colours. It has 12.6 MB.
SHAPE = (64, 256, 256, 3)

#: Stand-in for the model's computation, which would take both of the machine's cores from the network.
COMPUTE_SECONDS = 0.02

#: The answer for an image is the sum of one in so many bytes, which shows that its bytes have arrived.
STRIDE = 251

#: A batch and its answers are deleted when so many further batches have been answered.
KEPT_STEPS = 3

#: Longest time of a step. A model that waits longer for a batch believes the frontend dead.
STEP_SECONDS = 60.0


class WrongAnswer(RuntimeError):
    """A model gave a wrong answer."""


class Frontend:
    """Puts batches and counts answers with one client of its host's node."""

    name = "ensemble"
    title = "Ensemble serving: broadcast of 12.6 MB, a majority's answers"

    def __init__(self, socket: str, models: int) -> None:
        self._client = hoplite.connect(socket)
        self._models = models
        self._images = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)

    def prepare(self, step: int) -> None:
        # The first byte identifies the batch.
        self._images[:, 0, 0, 0] = step % 256

    def step(self, step: int) -> int:
        """Runs one batch, from its put to the majority's answers. Returns the number of living nodes."""
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
        """The arguments of a model that starts now."""
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
    """A model: answers batches until no more come."""
    with hoplite.connect(socket) as client:
        while True:
            try:
                images = client.get(_batch(step), timeout=STEP_SECONDS)
                time.sleep(COMPUTE_SECONDS)
                client.put(answer_to(images), _answer(step, model), timeout=STEP_SECONDS)
            except hoplite.ObjectDeleted:
                # The batch was deleted, as a majority answered without this model.
                pass
            step += 1


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
