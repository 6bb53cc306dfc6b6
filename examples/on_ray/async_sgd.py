"""Asynchronous SGD: a parameter server steps by whichever half of its workers' gradients comes first.

    python -m examples.on_ray.async_sgd

The workers of that half get the new parameters; the others' gradients are waited for in later rounds.
With `--model cartpole` the workers play, and the program is the A3C of reinforcement learning.
"""

from __future__ import annotations

import argparse

import hoplite.ray
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
        return self._model.gradient(parameters, hoplite.ray.empty(parameters.shape, np.float32))


def main() -> None:
    """Train, and tell how good the model has become."""
    options = parser(__doc__, rounds=100)
    add_model_options(options)
    train(options.parse_args())


def train(options: argparse.Namespace) -> None:
    """The parameter server."""
    hoplite.ray.init(**cluster(options))
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
        total, late = hoplite.ray.reduce(list(computing), num_returns=half)
        parameters = step(parameters, rate, ray.get(total), hoplite.ray.empty(parameters.shape, np.float32))
        sent = ray.put(parameters)
        for gradient in computing.keys() - late:
            worker = computing.pop(gradient)
            computing[worker.gradient.remote(sent)] = worker
    print(model.score(parameters))
    hoplite.ray.shutdown()


if __name__ == "__main__":
    main()
