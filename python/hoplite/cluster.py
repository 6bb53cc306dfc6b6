"""A whole cluster on this machine, for trials and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from hoplite.client import Client, connect
from hoplite.errors import BadArgument, TimedOut
from hoplite.launching import KILL_TIMEOUT, START_TIMEOUT, Launcher
from hoplite.tempdirs import OwnedTempdir
from hoplite.timeouts import CONNECT_TIMEOUT, DEFAULT, Deadline, Timeout

__all__ = ["LocalCluster"]

STOP_TIMEOUT = 10.0
"""Seconds a node may take to stop on SIGTERM before it is killed."""

POLL_INTERVAL = 0.02
"""Seconds between two polls of the nodes' members, or of a process's state."""

HOST = "127.0.0.1"


class LocalCluster:
    """A cluster of real node processes (`hoplited`) on this machine.

    ::

        with hoplite.LocalCluster(nodes=4) as cluster:
            a, b = cluster.connect(0), cluster.connect(1)
            a.put(np.arange(10), "numbers")
            print(b.get("numbers"))

    Every node has its own port on 127.0.0.1, its own socket and its own store. A store is shared
    memory of `store_size` bytes (an int, or a str such as "512MiB"). It takes memory only as it is
    used. Leaving the with-block (or `close`) stops the nodes. They also stop when this process dies,
    even by SIGKILL.
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

        `start_timeout` (seconds) bounds the whole start. Every `hoplited` gets the `daemon_args`.
        Raises `NodeUnreachable` with the end of the node's log if a node does not start.
        """
        if nodes < 1:
            raise BadArgument(f"a cluster has at least one node, not {nodes}")
        deadline = Deadline(start_timeout)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * nodes
        self._launcher = Launcher()
        self._store_size = str(store_size)
        self._daemon_args = tuple(daemon_args)
        self._start_timeout = start_timeout
        self._tempdir = OwnedTempdir()
        self._paused: set[int] = set()
        self._addresses = [f"{HOST}:0"] * nodes
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        try:
            for i in range(nodes):
                self._start(i, deadline)
            self.wait_members(nodes, timeout=deadline.left())
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
        """The address of each node, "127.0.0.1:port". A killed node keeps its address."""
        return list(self._addresses)

    @property
    def sockets(self) -> list[str]:
        """The path of each node's Unix socket, to which other processes can connect."""
        return [str(self._tempdir.path / f"{i}.sock") for i in range(len(self))]

    @property
    def pids(self) -> list[int | None]:
        """The process id of each node; None if the node is not running."""
        return [p.pid if p is not None and p.poll() is None else None for p in self._processes]

    def connect(
        self,
        node: int = 0,
        *,
        timeout: float | None = CONNECT_TIMEOUT,
        default_timeout: Timeout = DEFAULT,
    ) -> Client:
        """A new client of node number `node`. Closing the cluster closes it too."""
        client = connect(self.sockets[node], timeout=timeout, default_timeout=default_timeout)
        self._clients.add(client)
        return client

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL. As in a crash, it tells no other node."""
        process = self._processes[node]
        if process is not None:
            process.kill()
            self._reap(node, process, KILL_TIMEOUT, "SIGKILL")

    def stop(self, node: int, *, timeout: float | None = STOP_TIMEOUT) -> None:
        """Let a node leave (SIGTERM), and wait until its process has ended.

        With `--drain-ms` among the `daemon_args` the node first hands over the objects that only it
        holds. Raises `TimedOut` if the process has not ended within `timeout` seconds (None: for ever).
        The node goes on stopping after that.
        """
        process = self._processes[node]
        if process is not None:
            process.terminate()
            self.resume(node)
            self._reap(node, process, timeout, "SIGTERM")

    def pause(self, node: int) -> None:
        """Pause a node (SIGSTOP), as when its host swaps or is suspended."""
        process = self._processes[node]
        if process is not None:
            process.send_signal(signal.SIGSTOP)
            self._paused.add(node)
            deadline = Deadline(KILL_TIMEOUT)
            # Its last thread may take a moment to stop, or the process may have ended before.
            look = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
            while os.waitid(os.P_PID, process.pid, look) is None:
                if deadline.is_over():
                    raise TimedOut(f"node {node} still runs {KILL_TIMEOUT} s after SIGSTOP")
                time.sleep(POLL_INTERVAL)

    def resume(self, node: int) -> None:
        """Resume a paused node (SIGCONT)."""
        process = self._processes[node]
        if process is not None:
            process.send_signal(signal.SIGCONT)
        self._paused.discard(node)

    def restart(self, node: int) -> None:
        """Start a node again, empty, at its old address. A node that still runs is killed first."""
        self.kill(node)
        self._start(node, Deadline(self._start_timeout))

    def log(self, node: int) -> str:
        """The node's standard error so far."""
        return self._log_path(node).read_text(errors="replace")

    def wait_members(self, count: int, timeout: float | None = START_TIMEOUT) -> None:
        """Wait until every running node sees exactly `count` members, itself included.

        `timeout` is in seconds (None: for ever). `TimedOut` lists the members that each node saw. Paused
        nodes are not asked.
        """
        deadline = Deadline(timeout)
        with contextlib.ExitStack() as stack:
            asked = [i for i, pid in enumerate(self.pids) if pid is not None and i not in self._paused]
            clients = {i: stack.enter_context(connect(self.sockets[i], timeout=timeout)) for i in asked}
            while True:
                seen = {
                    self._addresses[i]: client.status(timeout=deadline.left()).members
                    for i, client in clients.items()
                }
                if all(len(members) == count for members in seen.values()):
                    return
                if deadline.is_over():
                    views = "; ".join(f"{a} sees {len(m)}: {', '.join(m)}" for a, m in seen.items())
                    raise TimedOut(f"no {count} members on every node within {timeout} s: {views}")
                time.sleep(POLL_INTERVAL)

    def close(self) -> None:
        """Close the clients, stop the nodes and remove their files. A second call does nothing."""
        for client in list(self._clients):
            client.close()
        self._clients.clear()
        running = [(i, process) for i, process in enumerate(self._processes) if process is not None]
        for node, process in running:
            process.terminate()
            self.resume(node)
        deadline = Deadline(STOP_TIMEOUT)
        for node, process in running:
            try:
                self._reap(node, process, deadline.left(), "SIGTERM")
            except TimedOut:
                self.kill(node)
        self._launcher.close()
        self._tempdir.remove()

    def _reap(self, node: int, process: subprocess.Popen[bytes], timeout: float | None, told: str) -> None:
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimedOut(
                f"node {node} (process {process.pid}) has not ended {timeout} s after {told}"
            ) from None
        self._processes[node] = None
        self._paused.discard(node)

    def _log_path(self, node: int) -> Path:
        return self._tempdir.path / f"{node}.log"

    def _seeds(self, node: int) -> Iterator[str]:
        for i, pid in enumerate(self.pids):
            if pid is not None and i != node:
                yield self._addresses[i]

    def _start(self, node: int, deadline: Deadline) -> None:
        self._processes[node], self._addresses[node] = self._launcher.start(
            self._addresses[node],
            self.sockets[node],
            store_size=self._store_size,
            seeds=list(self._seeds(node)),
            log=self._log_path(node),
            timeout=deadline.left(),
            args=self._daemon_args,
        )
