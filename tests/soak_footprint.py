"""The footprint of Hoplite's processes and of the programs, besides objects: memory, open files, tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hoplite
import hoplite.ray as hoplite_ray
import ray
from hoplite.ray.nodes.lookup import node_actor_of
from ray_cluster import TIMEOUT, RayCluster, children_of, parent_of, pid_of, sockets


@dataclass(frozen=True)
class Footprint:
    """The footprint of a process, or the maximum of several processes."""

    memory: int
    """Private bytes. The stores are shared memory and do not count."""
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.memory / (1 << 20):.1f}/{self.files}/{self.threads}"


def of_cluster(cluster: RayCluster, actors: list[Any], *, plain: bool) -> dict[str, Footprint]:
    """The maximum footprint of each kind of process."""
    raylets = cluster.raylets()
    workers = [child for raylet in raylets for child in children_of(raylet) if _is_idle(child)]
    kinds = {
        "driver": [os.getpid()],
        "actor": ray.get([actor.pid.remote() for actor in actors], timeout=TIMEOUT),
        "worker": workers,
        "raylet": raylets,
    }
    if not plain:
        kinds["hoplited"] = [pid_of(socket) for socket in sockets()]
        kinds["node actor"] = [parent_of(pid) for pid in kinds["hoplited"]]
    return {name: most_of(pids) for name, pids in kinds.items()}


def remembered() -> int:
    """The largest number of tombstones on a Hoplite node."""
    counts = []
    for socket in sockets():
        with hoplite.connect(socket) as client:
            counts.append(client.status(timeout=TIMEOUT).tombstones)
    return max(counts)


def left_in_nodes() -> list[str]:
    """The work and objects that are left in Hoplite's nodes, without tombstones."""
    left = []
    for socket in sockets():
        with hoplite.connect(socket) as client:
            status = client.status(timeout=TIMEOUT)
        of = {
            name: getattr(status, name)
            for name in ("copies", "entries", "used_bytes", "transfers", "reductions")
        }
        left += [f"{status.node}: {count} {name}" for name, count in of.items() if count]
    return left


def left_in_tables(actors: list[Any]) -> list[str]:
    """Entries of Hoplite's tables in this process, in these actors and in the node actors."""
    found = [("driver", tables())]
    found += [("actor", one) for one in ray.get([actor.tables.remote() for actor in actors], timeout=TIMEOUT)]
    node_actors = [node_actor_of(node, TIMEOUT) for node in hoplite_ray.nodes()]
    found += [
        ("node actor", one)
        for one in ray.get(
            [node_actor.__ray_call__.remote(_tables_of_node_actor) for node_actor in node_actors],
            timeout=TIMEOUT,
        )
    ]
    return [f"{who}: {count} {name}" for who, of in found for name, count in of.items() if count]


def of_process(pid: int) -> Footprint:
    """The footprint of a process. Raises `OSError` if it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Footprint(int(fields["RssAnon"].split()[0]) << 10, files, int(fields["Threads"]))


def most_of(pids: Iterable[int]) -> Footprint:
    """The maximum of each number over all processes that have not ended."""
    found = []
    for pid in pids:
        try:
            found.append(of_process(pid))
        except (OSError, KeyError):
            # The process has ended, perhaps during this call.
            continue
    return Footprint(*(max(getattr(one, name) for one in found) for name in ("memory", "files", "threads")))


def tables() -> dict[str, int]:
    """The number of entries in each of Hoplite's tables in this process of a Ray program."""
    from hoplite.ray.recovery import lineage, loss_poller, rebuilder
    from hoplite.ray.values import generator_guards

    making = 0 if rebuilder._rebuilder is None else len(rebuilder._rebuilder._rebuilds)
    return {
        "tasks": len(lineage._table.by_id),
        "yielded": len(generator_guards._held),
        "waited for": len(loss_poller._awaited),
        "made again": making,
    }


def _tables_of_node_actor(node_actor: Any) -> dict[str, int]:
    return {
        **tables(),
        "replaced guards": len(node_actor._guards._replaced),
        "ended guards": node_actor._guards._ended.qsize(),
    }


def _is_idle(pid: int) -> bool:
    """Whether the process is an idle worker for tasks."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::IDLE")
    except OSError:
        return False
