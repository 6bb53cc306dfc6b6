"""A whole cluster on this machine, for trying things out and for tests."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from hoplite.client import Client, connect
from hoplite.daemon import find_daemon
from hoplite.errors import BadArgument, HopliteError, NodeUnreachable, TimedOut

__all__ = ["LocalCluster"]

START_TIMEOUT = 30.0
"""Seconds a node may take to say where it listens; a loaded machine needs a few."""

STOP_TIMEOUT = 10.0
"""Seconds a node may take to stop on SIGTERM before it is killed."""

POLL_INTERVAL = 0.02
"""Seconds between looks at the members while waiting for them."""

STDERR_TAIL_BYTES = 4096
"""How much of a failed node's log goes into the error."""

HOST = "127.0.0.1"


class LocalCluster:
    """Real node processes (`hoplited`) on this machine, which know each other.

    ::

        with hoplite.LocalCluster(nodes=4) as cluster:
            a, b = cluster.connect(0), cluster.connect(1)
            a.put(np.arange(10), "numbers")
            print(b.get("numbers"))

    Every node has its own store of `store_size` bytes of shared memory (an int, or a str such as
    "512MiB"; memory is taken as it is used), its own port on 127.0.0.1 and its own socket. Leaving
    the with-block (or `close`) stops them; they also stop when this process dies, however it dies.
    """

    def __init__(
        self,
        nodes: int = 4,
        *,
        store_size: int | str = "1GiB",
        start_timeout: float = START_TIMEOUT,
        daemon_args: Sequence[str] = (),
    ) -> None:
        """Start `nodes` nodes and wait until all know each other.

        `start_timeout` (seconds) bounds the whole start; `daemon_args` are passed on to every
        `hoplited`. Raises `NodeUnreachable` with the end of its log if a node does not start.
        """
        if nodes < 1:
            raise BadArgument(f"a cluster has at least one node, not {nodes}")
        self._daemon = find_daemon()
        self._store_size = str(store_size)
        self._daemon_args = tuple(daemon_args)
        self._start_timeout = start_timeout
        # Under /tmp whatever $TMPDIR says: a socket's path may be 107 bytes long at most.
        self._folder = Path(tempfile.mkdtemp(prefix="hoplite-", dir="/tmp"))
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * nodes
        self._addresses = [f"{HOST}:0"] * nodes
        self._clients: list[Client] = []
        try:
            for i in range(nodes):
                self._start(i)
            self.wait_members(nodes, timeout=start_timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def addresses(self) -> list[str]:
        """ "127.0.0.1:port" of each node; a killed node keeps its address."""
        return list(self._addresses)

    @property
    def sockets(self) -> list[str]:
        """The path of each node's Unix socket; other processes connect to these."""
        return [str(self._folder / f"{i}.sock") for i in range(len(self))]

    @property
    def pids(self) -> list[int | None]:
        """The process of each node; None where it is not running."""
        return [p.pid if p is not None and p.poll() is None else None for p in self._processes]

    def connect(self, node: int = 0, *, timeout: float | None = 10.0) -> Client:
        """A new client of node number `node`, closed with the cluster at the latest."""
        client = connect(self.sockets[node], timeout=timeout)
        self._clients.append(client)
        return client

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL, as a crash would: nothing is said to anyone."""
        process = self._processes[node]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[node] = None

    def restart(self, node: int) -> None:
        """Start a killed (or still running: killed first) node again, empty, at its old address."""
        self.kill(node)
        self._start(node)

    def log(self, node: int) -> str:
        """What the node has written to its standard error so far."""
        return self._log_path(node).read_text(errors="replace")

    def wait_members(self, count: int, timeout: float | None = START_TIMEOUT) -> None:
        """Wait until every running node counts exactly `count` members, itself included.

        `timeout` in seconds, None for ever; `TimedOut` says what each node saw.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with contextlib.ExitStack() as stack:
            running = [i for i, pid in enumerate(self.pids) if pid is not None]
            clients = {i: stack.enter_context(connect(self.sockets[i], timeout=timeout)) for i in running}
            while True:
                seen = {self._addresses[i]: client.status().members for i, client in clients.items()}
                if all(len(members) == count for members in seen.values()):
                    return
                if deadline is not None and time.monotonic() > deadline:
                    views = "; ".join(f"{a} sees {len(m)}: {', '.join(m)}" for a, m in seen.items())
                    raise TimedOut(f"no {count} members on every node within {timeout} s: {views}")
                time.sleep(POLL_INTERVAL)

    def close(self) -> None:
        """Close the clients, stop the nodes and remove their files. May be called twice."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        running = [p for p in self._processes if p is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = [None] * len(self._processes)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log_path(self, node: int) -> Path:
        return self._folder / f"{node}.log"

    def _seeds(self, node: int) -> Iterator[str]:
        for i, pid in enumerate(self.pids):
            if pid is not None and i != node:
                yield self._addresses[i]

    def _start(self, node: int) -> None:
        command = [self._daemon, "--listen", self._addresses[node], "--socket", self.sockets[node]]
        command += ["--store-size", self._store_size, "--die-with-parent"]
        for seed in self._seeds(node):
            command += ["--seed", seed]
        command += self._daemon_args
        # What is set for the user's own nodes must not leak into these.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HOPLITE_")}
        with self._log_path(node).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=clean,
                # Its own group: Ctrl-C at the terminal is for this program, not for the nodes.
                process_group=0,
            )
        self._processes[node] = process
        self._addresses[node] = self._listening(node, process)

    def _listening(self, node: int, process: subprocess.Popen[bytes]) -> str:
        """Read the node's first line, which says where it listens."""
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout
        line = b""
        with process.stdout as stdout:
            while not line.endswith(b"\n"):
                wait = deadline - time.monotonic()
                if wait <= 0 or not select.select([stdout], [], [], wait)[0]:
                    raise self._start_error(node, f"said nothing within {self._start_timeout} s")
                piece = os.read(stdout.fileno(), 4096)
                if not piece:
                    code = process.wait()
                    raise self._start_error(node, f"ended with status {code} instead of starting")
                line += piece
        address = _address_in(line.decode(errors="replace"))
        if address is None:
            raise self._start_error(node, f"said {line!r}, which names no address")
        return address

    def _start_error(self, node: int, what: str) -> HopliteError:
        tail = self._log_path(node).read_bytes()[-STDERR_TAIL_BYTES:].decode(errors="replace")
        return NodeUnreachable(f"node {node} ({self._daemon}) {what}; its log ends:\n{tail}")


def _address_in(line: str) -> str | None:
    for word in line.split():
        host, colon, port = word.rstrip(",;").rpartition(":")
        if colon and host and port.isdigit():
            return f"{host}:{port}"
    return None
