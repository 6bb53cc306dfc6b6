"""Ray: a head in host 0, a node in every other, a driver in host 0 and an actor on each other node.

Ray has no collectives of its own on objects, so they are written as its users write them:

* broadcast: every actor gets the reference; each fetches the object from the one node that has it.
* gather: ``ray.get`` of all references.
* reduce, ``star``: the driver adds up the objects as ``ray.wait`` reports them ready. ``tree``: a tree of
  tasks, each of which adds two objects up on the node that has one of them.
* allreduce: one of these, and then the actors get the sum.
* round trip: an actor's method that is given the object and returns it.

Hosts that come one after the other return their object from a method, or get one, when they come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab.hosts import Host, Hosts
from lab.systems import ROUND_TRIP, System, peers
from lab.systems.driver import DriverSystem
from lab.worker import Process

WAYS = {
    "broadcast": ["get"],
    "gather": ["get"],
    "reduce": ["star", "tree"],
    "allreduce": ["star", "tree"],
    ROUND_TRIP: ["call"],
}

PORT = 6379

#: Each node's object store. Nothing is taken before it is used, and a store that is full spills to disk,
#: which would flatter us: this holds 16 objects of 256 MiB and their sum.
STORE_BYTES = 6 << 30

#: What a node says it has for the heaps of tasks: without it Ray refuses stores that large here.
MEMORY_BYTES = 1 << 30

#: One task and something to spare on each node. More means more idle processes.
CPUS = 2

#: Nodes that start together: sixteen on two cores did not hear from the head within the 30 s that they wait.
STARTS_AT_ONCE = 8

#: Its processes are stopped between runs, and are not dead for that.
NEVER_DEAD = {"RAY_health_check_failure_threshold": "1000000"}

#: Of a cluster that is on one machine, which nobody else reaches.
ALONE = {
    # Alike for the head, the nodes and the drivers, or they refuse each other.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Every node takes the machine's memory for its own, and would kill tasks for what else runs there.
    "RAY_memory_monitor_refresh_ms": "0",
}

SETTINGS = {
    **ALONE,
    **NEVER_DEAD,
    "RAY_BACKEND_LOG_LEVEL": "error",
    # By default, a node that has waited for 10 s for an object asks for it again, and is sent all of it once
    # more. On links as fast as those that Ray is made for that is a sign of loss; on ours, of a queue.
    "RAY_object_manager_pull_timeout_ms": "600000",
}

#: What ``ray start`` prints when its node serves.
READY = "Ray runtime started"


def missing() -> str:
    return peers.missing("ray")


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """``store`` is Hoplite's: Ray's is as large as it needs to be, see ``STORE_BYTES``."""
    with cluster(hosts) as (daemons, head), ExitStack() as stack:
        driver = peers.python("lab.systems.ray_driver", head, hosts[0].address, str(len(hosts)))
        process = Process(driver, hosts[0], peers.START_SECONDS, SETTINGS)
        system = DriverSystem("ray", len(hosts), process, daemons.pids, WAYS)
        stack.callback(system.close)
        yield [system]


@contextmanager
def cluster(
    hosts: Hosts,
    folder: Path = peers.BIN,
    head_cpus: int = CPUS,
    cpus: int = CPUS,
    settings: Mapping[str, str] = SETTINGS,
) -> Iterator[tuple[peers.Daemons, str]]:
    """A node on every host, and the address of the head. ``folder`` has the program, peers' by default."""
    with peers.Daemons() as daemons:
        head = f"{hosts[0].address}:{PORT}"
        daemons.wait_for(start_node(daemons, hosts[0], head, folder, head_cpus, settings), READY)
        others = list(hosts)[1:]
        for first in range(0, len(others), STARTS_AT_ONCE):
            together = others[first : first + STARTS_AT_ONCE]
            for log in [start_node(daemons, host, head, folder, cpus, settings) for host in together]:
                daemons.wait_for(log, READY)
        yield daemons, head


def start_node(
    daemons: peers.Daemons,
    host: Host,
    head: str,
    folder: Path,
    cpus: int,
    settings: Mapping[str, str],
    life: int = 0,
) -> Path:
    """The file that will have ``READY`` in it; the head is in host 0. ``life``: unlike earlier ones'."""
    name = f"ray{host.index}-{life}"
    command = [str(folder / "ray"), "start", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", host.address, "--temp-dir", str(daemons.folder / name)]
    command += ["--num-cpus", str(cpus), "--memory", str(MEMORY_BYTES)]
    command += ["--object-store-memory", str(STORE_BYTES), "--include-log-monitor", "false"]
    command += ["--resources", f'{{"host{host.index}": 1}}']
    if host.index == 0:
        command += ["--head", "--port", str(PORT), "--include-dashboard", "false"]
    else:
        command += ["--address", head]
    return daemons.start(name, host, command, settings)
