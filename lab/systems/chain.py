"""A chain of bare relays over TCP connections: the least time of any broadcast through a chain.

Host 0 sends from its memory. Each other host receives into its own memory and forwards the bytes.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from lab.hosts import Hosts
from lab.limits import BARE_CHUNK_BYTES, tune
from lab.memory import mapped
from lab.systems import System
from lab.systems.ranks import Ranks
from lab.worker import Process, checksum, pattern, serve

NAME = "bare chain"

PORT = 7072


def missing() -> str:
    return ""


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """The chain. ``store`` is for Hoplite only. Here each process has one object in its memory."""
    with ExitStack() as stack:
        ranks: list[Process] = []
        # Start from the far end, because each process connects to its successor.
        for host in reversed(list(hosts)):
            onward = hosts[host.index + 1].address if ranks else ""
            command = [sys.executable, "-m", "lab.systems.chain", str(host.index), host.address, onward]
            rank = Process(command, host)
            stack.callback(rank.close)
            ranks.insert(0, rank)
        yield [Ranks(NAME, ["broadcast"], ranks, hosts.memory)]


class Calls:
    """The commands of a host of the chain. ``onward`` is the address of the next host, empty for the last."""

    def __init__(self, index: str, address: str, onward: str) -> None:
        self._is_first = index == "0"
        self._listener = socket.create_server((address, PORT))
        self._onward = _tuned(socket.create_connection((onward, PORT))) if onward else None
        self._before: socket.socket | None = None
        self._array = np.empty(0, np.float32)

    def prepare(self, case: str, size: int, memory: dict[str, str]) -> dict[str, Any]:
        if not self._is_first and self._before is None:
            self._before = _tuned(self._listener.accept()[0])
        self._array = mapped(memory["source" if self._is_first else "result"], size)
        if self._is_first:
            pattern(size, 0, self._array)
        else:
            self._array.fill(0)
        return {}

    def run(self, case: str, trips: int) -> dict[str, Any]:
        data = self._array.data.cast("B")
        at = 0
        while at < len(data):
            until = min(at + BARE_CHUNK_BYTES, len(data))
            if self._before:
                read = self._before.recv_into(data[at:until])
                if read == 0:
                    raise RuntimeError(f"the host before closed after {at} of {len(data)} bytes")
                until = at + read
            if self._onward:
                self._onward.sendall(data[at:until])
            at = until
        return {"ended": time.monotonic()}

    def check(self) -> dict[str, Any]:
        """The checksum of the received bytes."""
        return {"checksums": [] if self._is_first else [checksum(self._array)]}


def _tuned(connection: socket.socket) -> socket.socket:
    tune(connection)
    return connection


if __name__ == "__main__":
    serve(Calls(*sys.argv[1:]), sys.stdin, sys.stdout)
