"""Bare relays in place of Hoplite's daemons: the least time of a round trip through two such processes.

A client's bytes go over a Unix socket to the relay of its host, and over TCP to the relay of the other host.
From there they go over a Unix socket to the other client. All four processes sleep until there are bytes to
read, as they share processors with others. The relays only forward the bytes.
"""

from __future__ import annotations

import select
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lab.hosts import Host, Hosts
from lab.limits import fill, tune
from lab.systems import ROUND_TRIP, System, WrongContent, expected, round_trips
from lab.worker import Process, checksum, pattern, serve

PORT = 7071

#: Most bytes that are forwarded at once.
CHUNK_BYTES = 1 << 20


def missing() -> str:
    return ""


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """Relays over the first two hosts. ``store`` is for Hoplite only. Relays store nothing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hoplite-lab-")))
        clients = []
        for index, role in enumerate(("listen", "call")):
            path = str(folder / str(index))
            stack.enter_context(_started("relay", hosts[index], path, role, hosts[0].address))
            clients.append(stack.enter_context(_started("client", hosts[index], path)))
        yield [Relays(clients)]


@contextmanager
def _started(role: str, host: Host, *arguments: str) -> Iterator[Process]:
    process = Process([sys.executable, "-m", "lab.systems.relays", role, *arguments], host)
    try:
        yield process
    finally:
        process.kill()


class Relays:
    name = "bare relays"
    cases = frozenset((ROUND_TRIP,))

    def __init__(self, clients: Sequence[Process]) -> None:
        self._clients = clients

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        first, second = self._clients
        trips = round_trips(size)
        first.ask("prepare", size=size)
        second.send("bounce", size=size, trips=trips)
        answer = first.ask("throw", trips=trips)
        second.receive()
        if first.ask("check")["checksums"] != expected(case, size, len(self._clients)):
            raise WrongContent(f"{name}: other bytes than must be")
        return float(answer["ended"] - answer["began"]) / trips

    def close(self) -> None:
        """Does nothing, as the processes end with ``opened``."""


class Calls:
    """The commands of a client."""

    def __init__(self, path: str) -> None:
        self._relay = socket.socket(socket.AF_UNIX)
        self._relay.connect(path)
        self._array = self._back = np.empty(0, np.float32)

    def prepare(self, size: int) -> dict[str, Any]:
        self._array = pattern(size, 0)
        self._back = np.zeros_like(self._array)
        return {}

    def throw(self, trips: int) -> dict[str, Any]:
        for _ in range(trips):
            self._relay.sendall(self._array.data)
            fill(self._relay, self._back.data.cast("B"))
        return {"ended": time.monotonic()}

    def bounce(self, size: int, trips: int) -> dict[str, Any]:
        data = memoryview(bytearray(size))
        for _ in range(trips):
            fill(self._relay, data)
            self._relay.sendall(data)
        return {}

    def check(self) -> dict[str, Any]:
        return {"checksums": [checksum(self._back)]}


def relay(path: str, role: str, address: str) -> None:
    """Relays bytes between the first client at ``path`` and the other host's relay, for ever."""
    with ExitStack() as stack:
        clients = stack.enter_context(socket.socket(socket.AF_UNIX))
        clients.bind(path)
        clients.listen()
        # The relay that connects is started when the one that listens is ready.
        relays = stack.enter_context(socket.create_server((address, PORT))) if role == "listen" else None
        print('{"ready": true}', flush=True)
        client = stack.enter_context(clients.accept()[0])
        other = relays.accept()[0] if relays else socket.create_connection((address, PORT))
        stack.enter_context(other)
        tune(other)
        _pass_on({client: other, other: client})


def _pass_on(onward: Mapping[socket.socket, socket.socket]) -> None:
    data = memoryview(bytearray(CHUNK_BYTES))
    while True:
        for ready in select.select(onward, [], [])[0]:
            read = ready.recv_into(data)
            if read == 0:
                return
            onward[ready].sendall(data[:read])


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        relay(*sys.argv[2:])
    else:
        serve(Calls(sys.argv[2]), sys.stdin, sys.stdout)
