"""One host of a cluster with its daemon, which can be killed, paused, cut off and brought back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import hoplite

from lab.daemons import PORT, Daemon, start
from lab.hosts import Host
from lab.worker import Worker

#: Longest time until a cluster is whole and empty again after a fault.
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.02


class NotSettled(RuntimeError):
    """Something was left after a fault was healed. The message says what."""


class NodeHost:
    """A host that a fault can strike."""

    def __init__(self, host: Host, daemon: Daemon, store: str) -> None:
        self.host, self.daemon, self._store = host, daemon, store

    @property
    def address(self) -> str:
        return self.daemon.address

    def kill_daemon(self) -> None:
        self.daemon.process.kill()
        self.daemon.process.wait()

    def pause(self) -> None:
        os.kill(self.daemon.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.daemon.process.pid, signal.SIGCONT)

    def cut(self) -> None:
        self.host.cut()

    def heal(self) -> None:
        self.host.heal()

    def restart_daemon(self, seed: str) -> None:
        """Starts a new daemon at the address of the dead one. It is a new node to the others."""
        assert self.daemon.process.stdout is not None
        self.daemon.process.stdout.close()
        arguments = ["--listen", f"0.0.0.0:{PORT}", "--store-size", self._store]
        self.daemon = start(arguments, Path(self.daemon.socket), self.host, [seed])

    def close(self) -> None:
        self.daemon.stop()


class ClientHost(NodeHost):
    """A host with one client process that executes commands."""

    def __init__(self, host: Host, daemon: Daemon, store: str) -> None:
        super().__init__(host, daemon, store)
        self.worker = Worker(daemon.socket, host)

    def restart(self, seed: str) -> None:
        """Starts a new daemon and a new client."""
        self.worker.kill()
        self.restart_daemon(seed)
        self.worker = Worker(self.daemon.socket, self.host)

    def close(self) -> None:
        self.worker.close()
        super().close()


def wait_until_whole(node_hosts: Sequence[NodeHost]) -> None:
    """Returns when every daemon knows all others."""
    everyone = sorted(node_host.address for node_host in node_hosts)

    def missing(status: hoplite.Status) -> str | None:
        known = sorted(status.members)
        return None if known == everyone else f"knows {', '.join(known)} and not all {len(everyone)}"

    _wait(node_hosts, missing)


def wait_until_empty(node_hosts: Sequence[NodeHost]) -> None:
    """Returns when no daemon holds a copy or takes part in a transfer or reduction."""

    def left(status: hoplite.Status) -> str | None:
        if status.copies == status.transfers == status.reductions == 0:
            return None
        return f"{status.copies} copies, {status.transfers} transfers, {status.reductions} reductions left"

    _wait(node_hosts, left)


def _wait(node_hosts: Sequence[NodeHost], trouble: Callable[[hoplite.Status], str | None]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    for node_host in node_hosts:
        with hoplite.connect(node_host.daemon.socket) as client:
            while (what := trouble(client.status(timeout=SETTLE_SECONDS))) is not None:
                if time.monotonic() > deadline:
                    raise NotSettled(f"{node_host.address} after {SETTLE_SECONDS:g} s: {what}")
                time.sleep(POLL_SECONDS)
