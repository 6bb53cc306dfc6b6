"""Ray: a head in host 0, a node in every other, a driver in host 0 and an actor on each other node.

Ray has no collectives of its own on objects. They are written in the usual ways of its users:

* broadcast: every actor gets the reference; each fetches the object from the one node that has it.
* gather: ``ray.get`` of all references.
* reduce, ``star``: the driver adds up the objects as ``ray.wait`` reports them ready. ``tree``: a tree of
  tasks, each of which adds two objects up on the node that has one of them.
* allreduce: one of these, and then the actors get the sum.
* round trip: an actor's method that is given the object and returns it.

Hosts that arrive one after the other return their object from a method, or get one, when they arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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

#: Size of each node's object store. It takes memory only as it is used. A full store spills to disk, which
#: would be unfair to Ray. This size holds 16 objects of 256 MiB and their sum.
STORE_BYTES = 6 << 30

#: Memory for the heaps of tasks that a node reports. Without it Ray refuses stores of this size here.
MEMORY_BYTES = 1 << 30

#: Processors of each node: enough for one task and one to spare. More means more idle processes.
CPUS = 2

#: Nodes that start together. Sixteen on two cores did not hear from the head within their time-out of 30 s.
STARTS_AT_ONCE = 8

#: Settings without death by time-out, as Ray's processes are stopped between runs.
NEVER_DEAD = {"RAY_health_check_failure_threshold": "1000000"}

#: Settings of a cluster on one machine that others cannot reach.
ALONE = {
    # This must be the same for the head, the nodes and the drivers, or they refuse each other.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Every node believes that it has all of the machine's memory, and would kill tasks because of other
    # processes.
    "RAY_memory_monitor_refresh_ms": "0",
}

SETTINGS = {
    **ALONE,
    **NEVER_DEAD,
    "RAY_BACKEND_LOG_LEVEL": "error",
    # By default, a node that has waited for 10 s for an object asks for it again, and all of it is sent
    # again. On fast links such a wait is a sign of loss. On these links it is a sign of a queue.
    "RAY_object_manager_pull_timeout_ms": "600000",
}

#: The output of ``ray start`` when its node is ready.
READY = "Ray runtime started"


def missing() -> str:
    return peers.missing("ray")


@contextmanager
def opened(hosts: Hosts, store: str) -> Iterator[Sequence[System]]:
    """Ray. ``store`` is for Hoplite only. Ray's stores have ``STORE_BYTES``."""
    with cluster(hosts) as nodes, ExitStack() as stack:
        driver = peers.python("lab.systems.ray_driver", nodes.head, hosts[0].address, str(len(hosts)))
        process = Process(driver, hosts[0], peers.START_SECONDS, SETTINGS)
        system = DriverSystem("ray", len(hosts), process, nodes.daemons.pids, WAYS)
        stack.callback(system.close)
        yield [system]


@dataclass(frozen=True)
class Cluster:
    """The Ray nodes of a lab. ``head`` is the address of the head, and ``folder`` has the program."""

    daemons: peers.Daemons
    head: str
    folder: Path
    settings: Mapping[str, str]

    def start(self, host: Host, cpus: int, life: int = 0) -> Path:
        """Starts a node. Returns the file that will have ``READY`` in it. ``life`` differs for each start."""
        name = f"ray{host.index}-{life}"
        command = [str(self.folder / "ray"), "start", "--block", "--disable-usage-stats"]
        command += ["--node-ip-address", host.address, "--temp-dir", str(self.daemons.folder / name)]
        command += ["--num-cpus", str(cpus), "--memory", str(MEMORY_BYTES)]
        command += ["--object-store-memory", str(STORE_BYTES), "--include-log-monitor", "false"]
        command += ["--resources", f'{{"host{host.index}": 1}}']
        if host.index == 0:
            command += ["--head", "--port", str(PORT), "--include-dashboard", "false"]
        else:
            command += ["--address", self.head]
        return self.daemons.start(name, host, command, self.settings)


@contextmanager
def cluster(
    hosts: Hosts,
    folder: Path = peers.BIN,
    head_cpus: int = CPUS,
    cpus: int = CPUS,
    settings: Mapping[str, str] = SETTINGS,
) -> Iterator[Cluster]:
    """A node on every host. ``folder`` has the program (default: the peers')."""
    with peers.Daemons() as daemons:
        nodes = Cluster(daemons, f"{hosts[0].address}:{PORT}", folder, settings)
        daemons.wait_for(nodes.start(hosts[0], head_cpus), READY)
        others = list(hosts)[1:]
        for first in range(0, len(others), STARTS_AT_ONCE):
            together = others[first : first + STARTS_AT_ONCE]
            for log in [nodes.start(host, cpus) for host in together]:
                daemons.wait_for(log, READY)
        yield nodes
