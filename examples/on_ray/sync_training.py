"""Synchronous data-parallel training: in each round all workers step by the mean of all their gradients.

python -m examples.on_ray.sync_training
"""

from __future__ import annotations

import argparse

import hoplite.ray
import numpy as np
import ray

from examples.on_ray.models import add_model_options, model_of, step
from examples.on_ray.options import cluster, parser, rounds


class Worker:
    """Holds the parameters, as all others do."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self._model = model_of(options, seed)
        self._workers = options.workers
        self._parameters = self._model.parameters()

    def gradient(self) -> np.ndarray:
        """Of the loss, on the next batch of this worker's own."""
        gradient = hoplite.ray.empty(self._parameters.shape, np.float32)
        return self._model.gradient(self._parameters, gradient)

    def step(self, total: np.ndarray) -> None:
        """Steps by the sum of all workers' gradients."""
        step(self._parameters, self._model.rate / self._workers, total)

    def score(self) -> str:
        """How good the model is."""
        return self._model.score(self._parameters)


def main() -> None:
    """Train, and tell how good the model has become."""
    options = parser(__doc__, rounds=60)
    add_model_options(options)
    train(options.parse_args())


def train(options: argparse.Namespace) -> None:
    """Rounds of gradients and steps."""
    hoplite.ray.init(**cluster(options))
    workers = [
        ray.remote(Worker).options(num_cpus=1, scheduling_strategy="SPREAD").remote(options, seed)
        for seed in range(1, options.workers + 1)
    ]
    steps: list[ray.ObjectRef] = []
    for _ in rounds(options):
        gradients = [worker.gradient.remote() for worker in workers]
        total = hoplite.ray.allreduce(gradients)
        # Of the round before: a worker that has made its step computes its next gradient at once.
        ray.get(steps)
        steps = [worker.step.remote(total) for worker in workers]
    print("; ".join(sorted(set(ray.get([worker.score.remote() for worker in workers])))))
    hoplite.ray.shutdown()


if __name__ == "__main__":
    main()
