"""Processes of one host that put, get and look up many objects: Hoplite's, Ray's, and a plain memcpy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from lab import processes
from lab.daemons import Daemon
from lab.hosts import Hosts
from lab.systems import peers, ray
from lab.worker import Process, Worker

#: Time between the command and the start of the processes.
START_AHEAD_SECONDS = 0.3

#: Time for Ray's processes to resume after a stop.
RESUME_SECONDS = 1.0


#: Name of a get of objects that this process has not got before. Another process puts each of them.
FIRST_GET = "first get"


class Clients(Protocol):
    """Some processes that make many calls at the same time. Each process makes its calls one after the other.

    "get" repeatedly gets one object that the process has put itself. `FIRST_GET` gets a new object each time.
    """

    name: str
    calls: frozenset[str]

    def run(self, call: str, size: int, clients: int, count: int, name: str) -> float:
        """Seconds until each of ``clients`` clients has made ``count`` calls with objects of ``size`` bytes.

        Objects to get or look up are put before the time starts. All are deleted after it ends.
        """
        ...


class HopliteClients:
    """Hoplite workers, in turn on each of the nodes."""

    name = "hoplite"
    calls = frozenset(("put", "get", FIRST_GET, "locate"))

    def __init__(self, daemons: Sequence[Daemon], clients: int) -> None:
        self.workers = [Worker(daemons[number % len(daemons)].socket) for number in range(clients)]
        self._other = Worker(daemons[0].socket)

    def run(self, call: str, size: int, clients: int, count: int, name: str) -> float:
        workers = self.workers[:clients]
        ids = [[f"{name}-{client}-{number}" for number in range(count)] for client in range(clients)]
        # Repeated gets need only one object of each client.
        put = [own if call != "get" else own[:1] for own in ids]
        for seed, (worker, own) in enumerate(zip(workers, put, strict=True)):
            writer = self._other if call == FIRST_GET else worker
            writer.ask("fill", size=size, seed=seed)
            if call != "put":
                writer.ask("put_many", ids=own)
        used = [own * count if call == "get" else own for own in put]
        what = "get" if call == FIRST_GET else call
        at = time.monotonic() + START_AHEAD_SECONDS
        for worker, own in zip(workers, used, strict=True):
            worker.send(f"{what}_many", at=at, ids=own)
        seconds = max([float(worker.receive()["ended"]) for worker in workers]) - at
        for worker, own in zip(workers, put, strict=True):
            worker.ask("check")
            worker.ask("delete", ids=own)
        return seconds

    def close(self) -> None:
        for worker in [*self.workers, self._other]:
            worker.close()


class Memcpy:
    """The same workers, which copy from private memory to private memory that was touched before."""

    name = "memcpy"
    calls = frozenset(("put",))

    def __init__(self, clients: HopliteClients) -> None:
        self._workers = clients.workers

    def run(self, call: str, size: int, clients: int, count: int, name: str) -> float:
        workers = self._workers[:clients]
        for seed, worker in enumerate(workers):
            worker.ask("fill", size=size, seed=seed)
            worker.ask("copy_many", count=1)
        at = time.monotonic() + START_AHEAD_SECONDS
        for worker in workers:
            worker.send("copy_many", at=at, count=count)
        return max([float(worker.receive()["ended"]) for worker in workers]) - at


class RayClients:
    """Actors on one Ray node. All its processes are stopped while other systems are measured."""

    name = "ray"
    calls = frozenset(("put", "get", FIRST_GET))

    def __init__(self, driver: Process, daemons: Sequence[int]) -> None:
        self._driver = driver
        self._processes = [*daemons, driver.pid]
        self._paused = processes.pause(self._processes)

    def run(self, call: str, size: int, clients: int, count: int, name: str) -> float:
        processes.resume(self._paused)
        time.sleep(RESUME_SECONDS)
        try:
            self._driver.ask("fill", clients=clients, size=size)
            if call == "get":
                self._many("put", clients, 1)
            if call == FIRST_GET:
                self._driver.ask("hand_out", clients=clients, size=size, count=count)
            seconds = self._many("put" if call == "put" else "get", clients, count)
            self._driver.ask("clear")
            return seconds
        finally:
            self._paused = processes.pause(self._processes)

    def close(self) -> None:
        processes.resume(self._paused)
        self._driver.close()

    def _many(self, call: str, clients: int, count: int) -> float:
        at = time.monotonic() + START_AHEAD_SECONDS
        # The start has another name here, because the worker itself uses "at" and "call".
        answer = self._driver.ask("many", what=call, clients=clients, count=count, start=at)
        return float(answer["ended"]) - at


@contextmanager
def ray_clients(clients: int) -> Iterator[RayClients]:
    """Ray clients on a host of their own, because Ray needs an address that is not a loopback."""
    with Hosts(1) as hosts, ray.cluster(hosts) as nodes, ExitStack() as stack:
        command = peers.python("lab.systems.ray_clients", nodes.head, hosts[0].address, str(clients))
        driver = Process(command, hosts[0], peers.START_SECONDS, ray.SETTINGS)
        running = RayClients(driver, nodes.daemons.pids)
        stack.callback(running.close)
        yield running
