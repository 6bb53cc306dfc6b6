"""Figure 12's applications on Ray: ``python -m lab.failure.on_ray HEAD SYSTEM APPLICATION PARTICIPANTS``.

This is their driver. It does a step on command, line by line, as `lab.worker` describes. The loops are those
of `examples.on_ray`, with Hoplite or on Ray alone. They can survive the loss of hosts: actors may restart,
their calls are retried, a majority's votes are enough, and slow models are not asked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import hoplite.ray
import numpy as np
import ray
from ray import serve

from examples.on_ray.models import StandIn
from lab.failure.ensemble import COMPUTE_SECONDS as CLASSIFY_SECONDS
from lab.failure.ensemble import SHAPE, answer_to
from lab.failure.sgd import COMPUTE_SECONDS
from lab.systems.peers import answers
from lab.systems.ray_driver import SHARE
from lab.worker import CALL_SECONDS
from lab.worker import serve as serve_calls

#: Size of the parameters and of a gradient.
PARAMETERS_BYTES = 16_000_000

#: Most unanswered calls of one model. It is not asked again before it has answered. Cancelling calls instead
#: would keep their batches: while a deployment has no replica, Ray Serve's router does not drop cancelled
#: calls from its queue (Ray 2.60).
UNANSWERED_MAX = 3

#: Options of a participant. It takes the processor of its host, and is restarted on a host with a free one.
LASTING = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": -1, "max_task_retries": -1}


class WrongContent(RuntimeError):
    """The parameters, or an answer, are wrong."""


class Application(Protocol):
    """An application that runs step after step."""

    def step(self) -> list[str]:
        """Runs one step. Returns the addresses of the hosts that took part."""

    def close(self) -> None:
        """Ends the application. Raises `WrongContent`."""


class Worker:
    """Computes gradients, whose elements are all 1."""

    def __init__(self) -> None:
        self._model = StandIn(PARAMETERS_BYTES, COMPUTE_SECONDS)

    def gradient(self, parameters: np.ndarray) -> np.ndarray:
        return self._model.gradient(parameters)

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())


class Server:
    """The parameter server. Each step takes the gradients of the first half of the workers to finish."""

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
        """Asks a worker for a gradient of the newest parameters."""
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
            # The gradient was computed and lost with its host. Only the caller of an actor can repeat the
            # call.
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


class Model:
    """One model of the ensemble."""

    async def __call__(self, images: np.ndarray) -> tuple[str, np.ndarray]:
        """The host, and the answer."""
        await asyncio.sleep(CLASSIFY_SECONDS)
        return str(ray.util.get_node_ip_address()), answer_to(images)


class Ensemble:
    """Passes images on to the models, and answers when a majority has answered."""

    def __init__(self, *models: serve.handle.DeploymentHandle) -> None:
        self._models = [(model, asyncio.Semaphore(UNANSWERED_MAX)) for model in models]
        self._heard_of: set[str] = set()

    async def __call__(self, images: list[ray.ObjectRef]) -> tuple[list[np.ndarray], list[str]]:
        """The majority's votes, and the hosts of all models that have answered since the last batch."""
        asked = [asyncio.ensure_future(self._vote(*model, images)) for model in self._models]
        votes: list[np.ndarray] = []
        for answer in asyncio.as_completed(asked):
            vote = await answer
            if vote is not None:
                votes.append(vote)
            if len(votes) > len(self._models) // 2:
                # Models that could not be asked yet are not asked any more.
                images.clear()
                heard_of, self._heard_of = self._heard_of, set()
                return votes, sorted(heard_of)
        raise WrongContent(f"only {len(votes)} of {len(self._models)} models answered")

    async def _vote(
        self, model: Any, turns: asyncio.Semaphore, images: list[ray.ObjectRef]
    ) -> np.ndarray | None:
        """A model's vote. None if the majority was complete before, or if the model died with its host."""
        async with turns:
            if not images:
                return None
            try:
                address, vote = await model.remote(images[0])
            except ray.exceptions.RayActorError:
                return None
            self._heard_of.add(address)
            return np.asarray(vote)


class Frontend:
    """Puts batches, and sends them to the ensemble."""

    def __init__(self, models: int) -> None:
        serve.start(proxy_location="Disabled")
        bound = [serve.deployment(Model, name=f"model-{number}").bind() for number in range(models)]
        # On the driver's host, as only models are to fail.
        options = {"num_cpus": 0, "resources": {"host0": SHARE}}
        self._asked = serve.run(
            serve.deployment(Ensemble, ray_actor_options=options).bind(*bound), route_prefix=None
        )
        self._images = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
        self._steps = 0

    def step(self) -> list[str]:
        self._steps += 1
        # Its first byte tells a batch from all others.
        self._images[:, 0, 0, 0] = self._steps % 256
        expected = answer_to(self._images)
        asked = self._asked.remote([ray.put(self._images)])
        votes, heard_of = asked.result(timeout_s=CALL_SECONDS)
        if not all(np.array_equal(vote, expected) for vote in votes):
            raise WrongContent(f"step {self._steps}")
        return list(heard_of)

    def close(self) -> None:
        serve.shutdown()


APPLICATIONS: Mapping[tuple[str, str], Callable[[int], Application]] = {
    ("hoplite", "sgd"): lambda participants: Server(_reduced, participants),
    ("ray", "sgd"): lambda participants: Server(_added, participants),
    ("hoplite", "ensemble"): Frontend,
    ("ray", "ensemble"): Frontend,
}


class Calls:
    """The commands of the driver."""

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
