"""Act 3, one of the workers: gets weights by version, gives gradients, until told to stop."""

from __future__ import annotations

import hoplite
import numpy as np

from examples.demo.network import PARAMETERS, digits, gradient
from examples.demo.stage import CALL_TIMEOUT

BATCH = 64
STOP = -1
"""The version that ends a worker."""


def weights_name(version: int) -> str:
    """The weights after `version` steps. Objects never change: the version is in the name."""
    return f"weights {version}"


def task_name(worker: int, turn: int) -> str:
    """Tells a worker on which version of the weights to take its next turn."""
    return f"task {worker}.{turn}"


def gradient_name(worker: int, turn: int) -> str:
    """What a worker gives back for a turn."""
    return f"gradient {worker}.{turn}"


def run(socket: str, worker: int) -> int:
    """Work until stopped; returns the number of gradients given."""
    data = digits()
    rng = np.random.default_rng(1000 + worker)
    with hoplite.connect(socket) as client:
        turn = 0
        while True:
            version = int(client.get(task_name(worker, turn), timeout=CALL_TIMEOUT))
            if version == STOP:
                return turn
            weights = client.get(weights_name(version), timeout=CALL_TIMEOUT)
            chosen = rng.choice(len(data.train_y), BATCH, replace=False)
            with client.create(gradient_name(worker, turn), PARAMETERS, np.float32) as creation:
                gradient(weights, data.train_x[chosen], data.train_y[chosen], creation.array)
            turn += 1
