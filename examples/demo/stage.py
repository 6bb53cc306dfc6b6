"""What the acts share: a cluster, a client on each node, worker processes, the display."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import hoplite
from rich.console import Console

NODES = 4
WORKERS = 2 * NODES

CALL_TIMEOUT = 120.0
"""Seconds after which the demo takes any one wait for stuck."""


@dataclass
class Stage:
    """Everything an act works with."""

    cluster: hoplite.LocalCluster
    clients: list[hoplite.Client]
    """One per node, in this process."""
    processes: ProcessPoolExecutor
    """Separate operating-system processes; each act connects them to the node it likes."""
    console: Console
    machine_rate: float
    """Bytes per second that the machine can copy."""

    def moved(self) -> int:
        """Bytes received over the network by all nodes so far."""
        return sum(client.status().received_bytes for client in self.clients)

    def of_machine(self, rate: float) -> str:
        """A rate in bytes per second, also as a fraction of what the machine can copy."""
        return f"{rate / 2**30:.2f} GiB/s: {100 * rate / self.machine_rate:.0f} % of memcpy"


@contextlib.contextmanager
def built(console: Console, store_bytes: int, machine_rate: float) -> Iterator[Stage]:
    """A running stage; everything is gone afterwards, also after an error."""
    # One thread of BLAS per process: there are more processes than cores already.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    with (
        hoplite.LocalCluster(NODES, store_size=store_bytes) as cluster,
        ProcessPoolExecutor(
            WORKERS, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_ctrl_c_to_parent
        ) as processes,
    ):
        clients = [cluster.connect(i) for i in range(NODES)]
        try:
            yield Stage(cluster, clients, processes, console, machine_rate)
        except BaseException:
            # Workers wait for objects that will not come: with their nodes gone they end.
            cluster.close()
            raise


def _leave_ctrl_c_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
