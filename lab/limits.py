"""Measures physical limits next to the systems: one core's memcpy, iperf3, and a bare TCP copy."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lab.hosts import Host
from lab.results import ROOT

#: Bytes that a bare copy gives to the kernel at once. Larger buffers would not help.
BARE_CHUNK_BYTES = 1 << 20


class IperfMissing(RuntimeError):
    """iperf3 is not installed."""

    def __init__(self) -> None:
        super().__init__("iperf3 is missing: apt-get install iperf3")


class Memcpy:
    """One core copies ``size`` bytes between two buffers of this process, which were touched before."""

    def __init__(self, size: int) -> None:
        self._from = np.ones(size, np.uint8)
        self._to = np.zeros(size, np.uint8)

    def seconds(self) -> float:
        began = time.perf_counter()
        np.copyto(self._to, self._from)
        return time.perf_counter() - began


@dataclass(frozen=True)
class Sent:
    """The result of iperf3."""

    bytes_per_second: float
    cpu_seconds: float
    """Processor time of sender and receiver."""


def iperf(
    address: str, size: int, server: Host | None = None, client: Host | None = None, flows: int = 1
) -> Sent:
    """The result of iperf3 for ``size`` bytes to ``address``, over ``flows`` connections together.

    A cap on flows limits one connection. Enough of them are limited by the link alone
    (``Network.flows_to_fill``). ``server`` and ``client`` are the hosts to run in (None: this one). It
    uses cubic, as Hoplite's data sockets do, because it is the fastest of the kernel's algorithms here.
    """
    if shutil.which("iperf3") is None:
        raise IperfMissing
    listen = _in(server, ["iperf3", "--server", "--one-off", "--forceflush", "--bind", address])
    # The client reports errors too. The server's only message is about its termination.
    serving = subprocess.Popen(listen, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert serving.stdout is not None
    try:
        for line in serving.stdout:
            if "listening" in line:
                break
        send = ["iperf3", "--json", "--congestion", "cubic", "--bytes", str(size), "--client", address]
        send += ["--parallel", str(flows)]
        done = subprocess.run(_in(client, send), capture_output=True, text=True)
        report = json.loads(done.stdout)
        if done.returncode != 0 or "error" in report:
            raise RuntimeError(f"iperf3 to {address}: {report.get('error', done.stderr)}")
        received, busy = report["end"]["sum_received"], report["end"]["cpu_utilization_percent"]
        percent = float(busy["host_total"]) + float(busy["remote_total"])
        return Sent(float(received["bits_per_second"]) / 8, percent / 100 * float(received["seconds"]))
    finally:
        serving.terminate()
        serving.communicate()


def bare_copy(address: str, size: int, server: Host | None = None, client: Host | None = None) -> float:
    """Bytes/s of a plain sender and receiver: one connection, memory to memory, both buffers touched.

    As for a get, the receiver measures the time from its request to the last byte.
    """
    return size / _pair(("send", server), ("receive", client), address, size)


def bare_round_trip(
    address: str, size: int, trips: int, server: Host | None = None, client: Host | None = None
) -> float:
    """Seconds of a round trip of ``size`` bytes to ``address`` over one connection, as the mean of ``trips``.

    The bytes are sent back when all have arrived. Both ends spin while they wait, as MPI's do, because a
    wake-up takes longer than the network.
    """
    return _pair(("bounce", server), ("throw", client), address, size, trips) / trips


def _pair(
    listening: tuple[str, Host | None], calling: tuple[str, Host | None], address: str, *numbers: int
) -> float:
    """Runs two roles of this module, each in its host. Returns the seconds that the second prints."""

    def command(role: str, host: Host | None, *more: str) -> list[str]:
        told = [role, address, *map(str, numbers), *more]
        return _in(host, [sys.executable, "-m", "lab.limits", *told])

    listener = subprocess.Popen(command(*listening), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert listener.stdout is not None
    try:
        port = listener.stdout.readline().strip()
        done = subprocess.run(command(*calling, port), check=True, capture_output=True, text=True, cwd=ROOT)
        return float(done.stdout)
    finally:
        listener.terminate()
        listener.communicate()


def _in(host: Host | None, command: list[str]) -> list[str]:
    return host.command(command) if host else command


def _send(address: str, size: int) -> None:
    data = np.ones(size, np.uint8).data
    with _accepted(address) as connection:
        connection.recv(1)
        for at in range(0, size, BARE_CHUNK_BYTES):
            connection.sendall(data[at : at + BARE_CHUNK_BYTES])


def _receive(address: str, size: int, port: int) -> None:
    data = np.ones(size, np.uint8).data
    with socket.create_connection((address, port)) as connection:
        tune(connection)
        began = time.perf_counter()
        connection.sendall(b"!")
        fill(connection, data)
        print(time.perf_counter() - began)


def _bounce(address: str, size: int, trips: int) -> None:
    data = np.ones(size, np.uint8).data
    with _accepted(address) as connection:
        for _ in range(1 + trips):
            _spin(connection)
            fill(connection, data)
            connection.sendall(data)


def _throw(address: str, size: int, trips: int, port: int) -> None:
    data = np.ones(size, np.uint8).data
    with socket.create_connection((address, port)) as connection:
        tune(connection)
        began = 0.0
        # The first trip does not count. In it the connection finds the link's rate.
        for trip in range(-1, trips):
            if trip == 0:
                began = time.perf_counter()
            connection.sendall(data)
            _spin(connection)
            fill(connection, data)
        print(time.perf_counter() - began)


@contextmanager
def _accepted(address: str) -> Iterator[socket.socket]:
    """Listens on a port, prints it, and accepts the first connection."""
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        tune(connection)
        yield connection


def _spin(connection: socket.socket) -> None:
    """Spins until there is something to receive."""
    while True:
        try:
            connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return
        except BlockingIOError:
            os.sched_yield()


def fill(connection: socket.socket, data: memoryview) -> None:
    """Receives bytes until ``data`` is full."""
    done = 0
    while done < len(data):
        got = connection.recv_into(data[done : done + BARE_CHUNK_BYTES])
        if got == 0:
            raise RuntimeError(f"the sender closed after {done} of {len(data)} bytes")
        done += got


def tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


def main(arguments: Sequence[str]) -> None:
    role, address, *numbers = arguments
    roles: dict[str, Callable[..., None]] = {
        "send": _send,
        "receive": _receive,
        "bounce": _bounce,
        "throw": _throw,
    }
    roles[role](address, *map(int, numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
