"""A soak of hoplite.ray: waves of objects in all the ways in which Ray programs use them.

``make soak-ray`` runs it on three Ray nodes. After each wave the Hoplite nodes must hold nothing and the
tables of hoplite.ray must be empty. At the end the memory, open files and threads of every kind of process
must not have grown. ``--plain`` does the same on Ray alone and only reports its figures. Growth there is not
caused by Hoplite.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import ray
import soak_footprint
from conftest import eventually
from ray_cluster import STORE_BYTES, RayCluster, driver, goes_back_to
from soak_footprint import Footprint
from soak_waves import THRESHOLD, Holder, Waves, array_of, beside, make

WAVES = 10

OBJECTS = 20_000

KILLED_DRIVER_EVERY = 3
"""Waves between two killed drivers. Another driver and its workers take as long to start as a wave."""

MEMORY_SPARE = 4 << 20
"""Bytes by which a process may grow from the second third of the waves to the last. Allocators keep
fragmented free memory."""

SPARE_OF_AN_OBJECT = {"driver": 2 << 10, "hoplited": 2 << 10}
"""Additional bytes for each object in between. A driver of Ray alone keeps 1.6 KiB, as ``--plain`` shows. A
Hoplite node remembers deleted ids for ten minutes."""

FILES_SPARE = 8
"""Open files, and threads, by which a process may grow. Pools of both vary in size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--waves", type=int, default=WAVES)
    parser.add_argument("--plain", action="store_true", help="on Ray alone")
    parser.add_argument("--owner", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.owner:
        own(options.owner, options.objects, options.plain)
        return
    with contextlib.closing(RayCluster()) as cluster, joined(cluster, options.plain):
        seen = soak(cluster, options.objects, options.waves, plain=options.plain)
    objects, grown = growth(seen)
    print(f"after {objects} more objects: KiB, files and threads more")
    for name, more in grown.items():
        print(f"  {name:10} {more.memory >> 10:+6} {more.files:+4} {more.threads:+4}")
    grew = [name for name, more in grown.items() if not is_flat(name, more, objects)]
    if grew and not options.plain:
        sys.exit(f"grew: {', '.join(grew)}")


@dataclass(frozen=True)
class Seen:
    """The figures after a wave."""

    objects: int
    """Number of objects made so far."""
    had: dict[str, Footprint]
    """Footprint of each kind of process."""


def soak(cluster: RayCluster, objects: int, waves: int, *, plain: bool = False) -> list[Seen]:
    """Run the waves. After each, wait until nothing of it is left."""
    seen: list[Seen] = []
    made = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Waves(cluster.address, Path(folder), plain=plain)
        while len(seen) < waves or made < objects:
            began = time.monotonic()
            wanted = max(objects // waves // len(work.kinds), 12)
            made += sum(kind(wanted) for kind in work.kinds.values())
            if len(seen) % KILLED_DRIVER_EVERY == 0:
                made += work.of_a_killed_driver(wanted)
            seconds = time.monotonic() - began
            if not plain:
                nothing_is_left(work)
            seen.append(Seen(made, soak_footprint.of_cluster(cluster, work.holders, plain=plain)))
            told = ", ".join(f"{name} {one}" for name, one in seen[-1].had.items())
            if not plain:
                told += f"; {soak_footprint.remembered()} ids of deleted objects remembered"
            print(f"wave {len(seen)}: {made} objects, {seconds:.1f} s; {told}", flush=True)
    return seen


@contextlib.contextmanager
def joined(cluster: RayCluster, plain: bool) -> Iterator[None]:
    """This process as a driver."""
    if not plain:
        with driver(cluster, transparent=True, threshold=THRESHOLD):
            yield
        return
    ray.init(address=cluster.address, namespace="tests", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def nothing_is_left(work: Waves) -> None:
    """Wait until the nodes hold nothing and Hoplite's tables are empty in all remaining processes."""
    goes_back_to(0)
    eventually(lambda: not soak_footprint.left_in_nodes(), "the nodes have nothing to do")
    eventually(lambda: not soak_footprint.left_in_tables(work.holders), "Hoplite's tables are empty")


def growth(seen: Sequence[Seen]) -> tuple[int, dict[str, Footprint]]:
    """The growth of the medians from the second third of the waves to the last.

    Returns the number of objects made in a third, and the growth of each kind of process.
    """
    third = len(seen) // 3
    before, after = seen[-2 * third : -third], seen[-third:]

    def more(name: str, what: str) -> int:
        now, then = (median(getattr(one.had[name], what) for one in some) for some in (after, before))
        return int(now - then)

    grown = {
        name: Footprint(more(name, "memory"), more(name, "files"), more(name, "threads"))
        for name in seen[-1].had
    }
    return after[-1].objects - before[-1].objects, grown


def is_flat(name: str, more: Footprint, objects: int) -> bool:
    """Whether the growth is within the limits above."""
    memory = MEMORY_SPARE + SPARE_OF_AN_OBJECT.get(name, 0) * objects
    return more.memory <= memory and max(more.files, more.threads) <= FILES_SPARE


def own(address: str, count: int, plain: bool) -> None:
    """As another driver: make objects, print their number, and hold them until this process is killed."""
    if plain:
        ray.init(address=address, log_to_driver=False)
    else:
        import hoplite.ray as hoplite_ray

        hoplite_ray.init(address=address, threshold=THRESHOLD, store_size=STORE_BYTES, log_to_driver=False)
    third = max(count // 3, 1)
    held = [make.remote(value) for value in range(third)]
    held += [ray.put(array_of(value)) for value in range(third)]
    holder = Holder.options(**beside(1)).remote()
    held += [holder.make.remote(value) for value in range(third)]
    ray.get(holder.hold.remote(held))
    print(len(held), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
