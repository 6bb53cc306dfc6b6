"""Processes that put and get on one Ray node.

``python -m lab.systems.ray_clients HEAD ADDRESS CLIENTS`` is the driver of that many processes. It is driven
line by line, as `lab.worker` describes.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import ray

from lab.systems.peers import answers
from lab.worker import CALL_SECONDS, pattern, serve, wait_until


class Client:
    """One process. It keeps its objects until it is told to release them."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.float32)
        self._references: list[Any] = []

    def fill(self, size: int, seed: int) -> None:
        self._array = pattern(size, seed)

    def put_many(self, count: int, start: float) -> float:
        wait_until(start)
        self._references = [ray.put(self._array) for _ in range(count)]
        return time.monotonic()

    def put_for_another(self, count: int) -> list[Any]:
        return [ray.put(self._array) for _ in range(count)]

    def take(self, references: list[Any]) -> None:
        """Sets the objects that are got from now on."""
        self._references = references

    def get_many(self, count: int, start: float) -> float:
        """Gets the objects that were put or taken last, in turn."""
        wait_until(start)
        for number in range(count):
            got = ray.get(self._references[number % len(self._references)])
        ended = time.monotonic()
        if not np.array_equal(got, self._array):
            raise RuntimeError("other bytes than were put")
        return ended

    def clear(self) -> None:
        self._references = []


class Calls:
    """The commands of the driver. ``clients`` is the number of clients that take part."""

    def __init__(self, head: str, address: str, clients: int) -> None:
        ray.init(address=head, _node_ip_address=address, log_to_driver=False, logging_level="error")
        self._clients = [ray.remote(Client).options(num_cpus=0).remote() for _ in range(clients)]
        self._other = ray.remote(Client).options(num_cpus=0).remote()

    def fill(self, clients: int, size: int) -> dict[str, Any]:
        chosen = self._clients[:clients]
        ray.get([client.fill.remote(size, seed) for seed, client in enumerate(chosen)], timeout=CALL_SECONDS)
        return {}

    def hand_out(self, clients: int, size: int, count: int) -> dict[str, Any]:
        """Another process puts ``count`` objects for each client."""
        for seed, client in enumerate(self._clients[:clients]):
            self._other.fill.remote(size, seed)
            references = ray.get(self._other.put_for_another.remote(count), timeout=CALL_SECONDS)
            ray.get(client.take.remote(references), timeout=CALL_SECONDS)
        return {}

    def many(self, what: str, clients: int, count: int, start: float) -> dict[str, Any]:
        chosen = self._clients[:clients]
        ended = [getattr(client, f"{what}_many").remote(count, start) for client in chosen]
        return {"ended": max(ray.get(ended, timeout=CALL_SECONDS))}

    def clear(self) -> dict[str, Any]:
        ray.get([client.clear.remote() for client in self._clients], timeout=CALL_SECONDS)
        return {}


def main(head: str, address: str, clients: str) -> None:
    with answers() as pipe:
        serve(Calls(head, address, int(clients)), sys.stdin, pipe)
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
