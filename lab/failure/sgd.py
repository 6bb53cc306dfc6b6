"""Asynchronous SGD: a parameter server sums the gradients of the first half of its living workers to finish.

It then sends new parameters to those workers. ``Server`` is the driver's end, and ``python -m lab.failure.sgd
SOCKET WORKER LIFE VERSION VALUE`` is a worker. Gradients and parameters are whole numbers, the same in every
element, so every sum is known exactly beforehand.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import hoplite
import numpy as np

#: Elements of a gradient and of the parameters: 64 MB of float32.
ELEMENTS = 16_000_000

#: Stands for the computing of a gradient, which would take both of the machine's cores from the network.
COMPUTE_SECONDS = 0.1

#: A worker looks at every so many'th parameter.
STRIDE = 4099

#: Longest that a step may take, and that a worker waits for its server.
STEP_SECONDS = 120.0


class WrongContent(RuntimeError):
    """A sum or the parameters are not what they must be."""


class Server:
    """The parameter server, over one client of its host's node."""

    name = "sgd"
    title = "Asynchronous SGD: reduce of the first half's gradients (64 MB), broadcast to them"

    def __init__(self, socket: str, workers: int) -> None:
        self._client = hoplite.connect(socket)
        self._version, self._value = 0, 0.0
        # What every worker is at: which of its lives, which round; and the parameters it was sent.
        self._rounds = {worker: (-1, 0) for worker in range(workers)}
        self._sent = dict.fromkeys(range(workers), 0)
        # Those that came back and have not sent a gradient yet: nobody counts on them so far.
        self._joining: set[int] = set()
        self._parameters = np.zeros(ELEMENTS, np.float32)
        self._client.put(self._parameters, _parameters(0))
        self._versions = {0}
        self._done: list[str] = []

    def prepare(self, step: int) -> None:
        """Nothing to do beforehand."""

    def step(self, step: int) -> int:
        """One update, from asking for gradients to the new parameters; returns how many nodes were alive."""
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
        """Looks at every element of what the step made, and deletes what nobody needs any more."""
        self._parameters = self._client.get(_parameters(self._version), timeout=STEP_SECONDS)
        if not np.all(self._parameters == self._value):
            raise WrongContent(f"step {step}: the parameters are not the sum of what went in")
        old = self._versions - {self._version, *self._sent.values()}
        self._versions -= old
        self._client.delete([*self._done, *map(_parameters, old)])

    def arguments(self, participant: int, step: int) -> list[str]:
        """What a worker that starts now is told; from now on its gradients are waited for."""
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
        """Those that are there now."""
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
    """What a worker's gradient holds in every place. Sums of hundreds of these are exact in float32."""
    return float(1 + worker + 10 * (number % 10))


def work(socket: str, worker: int, life: int, version: int, value: float) -> None:
    """A worker: gradient after gradient until no more are asked for."""
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
