"""Dask: the scheduler in host 0, a worker on every host, a client in host 0.

Dask has no collectives of its own, except ``Client.replicate``. The others are written in the usual ways of
its users:

* broadcast, ``tasks``: a task on every worker that takes the object. ``replicate-1``, ``replicate-2``:
  ``Client.replicate``, in which each holder sends the object to 1 or 2 others, round by round.
* gather, ``client``: ``Client.gather``, straight from the workers. ``task``: one on host 0 that takes all.
* reduce, ``star``: one task on host 0 that takes all objects. ``tree``: a tree of tasks that add up two.
* allreduce: one of these, and then one of the broadcasts.
* round trip: a task on host 1 takes the object, and a task on host 0 takes a copy of it.

Hosts that arrive one after the other run a task that has or takes its object when they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from lab.hosts import Hosts
from lab.systems import ROUND_TRIP, System, peers
from lab.systems.driver import DriverSystem
from lab.worker import Process

WAYS = {
    "broadcast": ["tasks", "replicate-1", "replicate-2"],
    "gather": ["client", "task"],
    "reduce": ["star", "tree"],
    "allreduce": ["star tasks", "tree tasks", "tree replicate-1"],
    ROUND_TRIP: ["tasks"],
}

PORT = 8786

#: Threads of each worker. Another thread moves data.
THREADS = 2

SETTINGS = {
    # If it is on, it drops copies while a broadcast makes them, and large broadcasts never end.
    "DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START": "False",
    # Its processes are stopped between runs, which must not count as their death.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null",
    # Make Dask's idle work as rare as possible, as it would disturb the measurements of others.
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "60s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}


def missing() -> str:
    return peers.missing("distributed")


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """Dask. ``store`` is for Hoplite only. Dask's workers have no limit."""
    with ExitStack() as stack:
        daemons = stack.enter_context(peers.Daemons())
        scheduler = f"tcp://{hosts[0].address}:{PORT}"
        command = peers.python("distributed.cli.dask_scheduler", "--no-dashboard")
        command += ["--host", hosts[0].address, "--port", str(PORT)]
        daemons.start("dask-scheduler", hosts[0], command, SETTINGS)
        for host in hosts:
            command = peers.python("distributed.cli.dask_worker", scheduler, "--host", host.address)
            command += ["--name", f"host{host.index}", "--nthreads", str(THREADS), "--memory-limit", "0"]
            command += ["--no-nanny", "--no-dashboard", "--local-directory", str(daemons.folder)]
            daemons.start(f"dask-worker{host.index}", host, command, SETTINGS)
        client = peers.python("lab.systems.dask_client", scheduler, str(len(hosts)))
        process = Process(client, hosts[0], peers.START_SECONDS, SETTINGS)
        system = DriverSystem("dask", len(hosts), process, daemons.pids, WAYS)
        stack.callback(system.close)
        yield [system]
