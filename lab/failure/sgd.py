"""Asynchronous SGD: a parameter server sums the gradients of the first half of its living workers to finish.

It then sends new parameters to those workers. ``Server`` runs in the driver, and ``python -m lab.failure.sgd
SOCKET WORKER LIFE VERSION VALUE`` is a worker. All elements of a gradient, or of the parameters, are the same
whole number, so every sum is known exactly beforehand.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import hoplite
import numpy as np

#: Number of elements of a gradient and of the parameters: 64 MB of float32.
ELEMENTS = 16_000_000

#: Stand-in for the computation of a gradient, which would take both of the machine's cores from the network.
COMPUTE_SECONDS = 0.1

#: A worker checks one of so many parameters.
STRIDE = 4099

#: Longest time of a step, and of a worker's wait for its server.
STEP_SECONDS = 120.0


class WrongContent(RuntimeError):
    """A sum or the parameters are wrong."""


class Server:
    """The parameter server, with one client of its host's node."""

    name = "sgd"
    title = "Asynchronous SGD: reduce of the first half's gradients (64 MB), broadcast to them"

    def __init__(self, socket: str, workers: int) -> None:
        self._client = hoplite.connect(socket)
        self._version, self._value = 0, 0.0
        # The life and round of every worker, and the parameters that it was sent.
        self._rounds = {worker: (-1, 0) for worker in range(workers)}
        self._sent = dict.fromkeys(range(workers), 0)
        # Workers that came back and have not sent a gradient yet. The server does not wait for them.
        self._joining: set[int] = set()
        self._parameters = np.zeros(ELEMENTS, np.float32)
        self._client.put(self._parameters, _parameters(0))
        self._versions = {0}
        self._done: list[str] = []

    def prepare(self, step: int) -> None:
        """Does nothing."""

    def step(self, step: int) -> int:
        """One update, from the request of gradients to new parameters. Returns the number of living nodes."""
        alive = len(self._client.status(timeout=STEP_SECONDS).members) - 1
        sources = {_gradient(worker, *at): worker for worker, at in self._rounds.items()}
        self._joining -= {sources[name] for name in self._ready(sources)}
        half = max(1, (alive - len(self._joining)) // 2)
        reduction = self._client.reduce(
            list(sources), target=f"sum-{step}", num_objects=half, timeout=STEP_SECONDS
        )
        total = self._client.get(reduction.target, timeout=STEP_SECONDS)
        went_in = [source.name or "" for source in reduction.result(timeout=STEP_SECONDS).sources]
        workers = [sources[name] for name in went_in]
        self._version += 1
        self._versions.add(self._version)
        self._done = [*went_in, f"sum-{step}"]
        with self._client.create(_parameters(self._version), ELEMENTS, np.float32) as creation:
            np.add(self._parameters, total, out=creation.array)
        for worker in workers:
            life, number = self._rounds[worker]
            self._value += _value(worker, number)
            self._done.append(_next(worker, life, number))
            self._rounds[worker] = (life, number + 1)
            self._sent[worker] = self._version
        for worker in workers:
            told = np.array([self._version, self._value])
            self._client.put(told, _next(worker, *self._rounds[worker]), timeout=STEP_SECONDS)
        return alive

    def tidy(self, step: int) -> None:
        """Checks all elements of the step's objects, and deletes objects that are no longer needed."""
        self._parameters = self._client.get(_parameters(self._version), timeout=STEP_SECONDS)
        if not np.all(self._parameters == self._value):
            raise WrongContent(f"step {step}: the parameters are not the sum of what went in")
        old = self._versions - {self._version, *self._sent.values()}
        self._versions -= old
        self._client.delete([*self._done, *map(_parameters, old)])

    def arguments(self, participant: int, step: int) -> list[str]:
        """The arguments of a worker that starts now. From now on the server waits for its gradients."""
        worker = participant - 1
        life = self._rounds[worker][0] + 1
        if life > 0:
            self._joining.add(worker)
        self._rounds[worker] = (life, 0)
        self._sent[worker] = self._version
        return ["lab.failure.sgd", *map(str, (worker, life, self._version, self._value))]

    def close(self) -> None:
        self._client.close()

    def _ready(self, gradients: Iterable[str]) -> list[str]:
        """The gradients that exist now."""
        if not self._joining:
            return []
        ready, _ = self._client.wait(gradients, timeout=0)
        return [gradient.name or "" for gradient in ready]


def _parameters(version: int) -> str:
    return f"parameters-{version}"


def _gradient(worker: int, life: int, number: int) -> str:
    return f"gradient-{worker}-{life}-{number}"


def _next(worker: int, life: int, number: int) -> str:
    return f"next-{worker}-{life}-{number}"


def _value(worker: int, number: int) -> float:
    """The value of all elements of a worker's gradient. Sums of hundreds of these are exact in float32."""
    return float(1 + worker + 10 * (number % 10))


def work(socket: str, worker: int, life: int, version: int, value: float) -> None:
    """A worker: makes gradients until no more are requested."""
    with hoplite.connect(socket) as client:
        number = 0
        while True:
            parameters = client.get(_parameters(version), timeout=STEP_SECONDS)
            if not np.all(parameters[::STRIDE] == value):
                raise WrongContent(f"worker {worker}: parameters {version} are not {value}")
            time.sleep(COMPUTE_SECONDS)
            with client.create(_gradient(worker, life, number), ELEMENTS, np.float32) as creation:
                creation.array.fill(_value(worker, number))
            number += 1
            told = client.get(_next(worker, life, number), timeout=STEP_SECONDS)
            version, value = int(told[0]), float(told[1])


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
