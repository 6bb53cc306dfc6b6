"""Asynchronous SGD on Ray alone: the twin of async_sgd.py.

python -m examples.on_ray.async_sgd_plain
"""

from __future__ import annotations

import argparse

import numpy as np
import ray

from examples.on_ray.models import add_model_options, model_of, step
from examples.on_ray.options import cluster, parser, rounds


class Worker:
    """Computes gradients, on batches of its own."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self._model = model_of(options, seed)

    def gradient(self, parameters: np.ndarray) -> np.ndarray:
        """Of the loss, on the next batch."""
        return self._model.gradient(parameters)


def main() -> None:
    """Train, and tell how good the model has become."""
    options = parser(__doc__, rounds=100)
    add_model_options(options)
    train(options.parse_args())


def train(options: argparse.Namespace) -> None:
    """The parameter server."""
    ray.init(**cluster(options))
    model = model_of(options, seed=0)
    half = max(options.workers // 2, 1)
    rate = model.rate / half
    parameters = model.parameters()
    sent = ray.put(parameters)
    workers = [
        ray.remote(Worker).options(num_cpus=1, scheduling_strategy="SPREAD").remote(options, seed)
        for seed in range(1, options.workers + 1)
    ]
    computing = {worker.gradient.remote(sent): worker for worker in workers}
    for _ in rounds(options):
        ready, late = ray.wait(list(computing), num_returns=half)
        for gradient in ready:
            step(parameters, rate, ray.get(gradient))
        sent = ray.put(parameters)
        for gradient in computing.keys() - late:
            worker = computing.pop(gradient)
            computing[worker.gradient.remote(sent)] = worker
    print(model.score(parameters))
    ray.shutdown()


if __name__ == "__main__":
    main()
