"""Figure 12's asynchronous SGD on Ray: ``python -m lab.failure.on_ray HEAD SYSTEM APPLICATION PARTICIPANTS``.

Its driver, told line by line to do a step, as `lab.worker` says. It is the loop of `examples.on_ray`, with
Hoplite or on Ray alone, and with what programs do that are to outlive their hosts: actors may be restarted,
and their calls made again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import hoplite.ray
import numpy as np
import ray

from examples.on_ray.models import StandIn
from lab.failure.sgd import COMPUTE_SECONDS
from lab.systems.peers import answers
from lab.worker import CALL_SECONDS
from lab.worker import serve as serve_calls

#: Of the parameters and of a gradient.
PARAMETERS_BYTES = 16_000_000

#: A participant takes the processor of its host, and is started anew where there is one.
LASTING = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": -1, "max_task_retries": -1}


class WrongContent(RuntimeError):
    """The parameters, or an answer, are not what they must be."""


class Application(Protocol):
    """What is done step after step."""

    def step(self) -> list[str]:
        """Returns the addresses of the hosts that took part."""

    def close(self) -> None:
        """Raises `WrongContent`."""


class Worker:
    """Computes gradients, which are 1 everywhere."""

    def __init__(self) -> None:
        self._model = StandIn(PARAMETERS_BYTES, COMPUTE_SECONDS)

    def gradient(self, parameters: np.ndarray) -> np.ndarray:
        return self._model.gradient(parameters)

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())


class Server:
    """The parameter server: each step takes the gradients of whichever half of the workers comes first."""

    def __init__(
        self, add_up: Callable[[Server, int], tuple[np.ndarray, set[ray.ObjectRef]]], workers: int
    ) -> None:
        self._add_up, self._half = add_up, max(workers // 2, 1)
        self._model = StandIn(PARAMETERS_BYTES, COMPUTE_SECONDS)
        self._parameters = self._model.parameters()
        self._steps = 0
        started = [ray.remote(Worker).options(**LASTING).remote() for _ in range(workers)]
        asked = [worker.address.remote() for worker in started]
        self._addresses = dict(zip(started, ray.get(asked, timeout=CALL_SECONDS), strict=True))
        self.computing: dict[ray.ObjectRef, Any] = {}
        self._sent = ray.put(self._parameters)
        for worker in started:
            self.ask(worker)

    def ask(self, worker: Any) -> None:
        """For a gradient of the newest parameters."""
        self.computing[worker.gradient.remote(self._sent)] = worker

    def step(self) -> list[str]:
        total, done = self._add_up(self, self._half)
        self._parameters -= self._model.rate / self._half * total
        self._steps += 1
        self._sent = ray.put(self._parameters)
        workers = [self.computing.pop(gradient) for gradient in done]
        for worker in workers:
            self.ask(worker)
        return [self._addresses[worker] for worker in workers]

    def close(self) -> None:
        if not np.all(self._parameters == -self._steps):
            raise WrongContent(f"after {self._steps} steps: {self._model.score(self._parameters)}")


def _reduced(server: Server, half: int) -> tuple[np.ndarray, set[ray.ObjectRef]]:
    while True:
        total, late = hoplite.ray.reduce(list(server.computing), num_returns=half, timeout=CALL_SECONDS)
        done = server.computing.keys() - late
        try:
            return ray.get(total), done
        except ray.exceptions.ObjectLostError:
            # Computed, and gone with its host. Of an actor's results nobody but its caller can have it again.
            for gradient in done:
                try:
                    hoplite.ray.get(hoplite.ray.prefetch(gradient), timeout=CALL_SECONDS)
                except ray.exceptions.ObjectLostError:
                    server.ask(server.computing.pop(gradient))


def _added(server: Server, half: int) -> tuple[np.ndarray, set[ray.ObjectRef]]:
    ready, _ = ray.wait(list(server.computing), num_returns=half)
    total = np.zeros(PARAMETERS_BYTES // 4, np.float32)
    for gradient in ready:
        total += ray.get(gradient)
    return total, set(ready)


APPLICATIONS: Mapping[tuple[str, str], Callable[[int], Application]] = {
    ("hoplite", "sgd"): lambda participants: Server(_reduced, participants),
    ("ray", "sgd"): lambda participants: Server(_added, participants),
}


class Calls:
    """What the driver can be told to do."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def step(self) -> dict[str, Any]:
        return {"took_part": self._application.step()}

    def close(self) -> dict[str, Any]:
        self._application.close()
        return {}


def main(head: str, system: str, application: str, participants: str) -> None:
    with answers() as pipe:
        init = hoplite.ray.init if system == "hoplite" else ray.init
        init(head, log_to_driver=False)
        calls = Calls(APPLICATIONS[system, application](int(participants)))
        serve_calls(calls, sys.stdin, pipe)
        (hoplite.ray if system == "hoplite" else ray).shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
