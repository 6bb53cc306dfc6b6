"""What the transparent mode of hoplite.ray costs calls with nothing large, and what it gains the others.

    python -m lab.ray_calls [--rounds 5] [--sizes 65536 1048576 ...]

On one local Ray node: plain Ray and transparent mode in turn, each in a process of its own; medians. With
--sizes, instead: the time that an array of each size takes from one task to the next, on a second Ray node
of this machine. That shows from what size on Hoplite is the faster (`threshold`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import hoplite.ray
import numpy as np
import ray
from ray.cluster_utils import Cluster

CPUS = 2
"""So many tasks run at once: more would have Ray start workers and end them all the time."""

FREE = ray.remote(num_cpus=0)
"""Waits for no task."""

MODES = ("ray", "hoplite")
CALLS = 1000
"""In one batch."""

BATCHES = 3
PAIRS = 30
"""Arrays of each size that go from task to task."""

STORE_BYTES = 512 << 20


def nothing(*_: object) -> None: ...


class Actor:
    def nothing(self, *_: object) -> None: ...


def make(size: int) -> np.ndarray:
    return np.ones(size, np.uint8)


def last(array: np.ndarray) -> int:
    return int(array[-1])


def small_calls() -> dict[str, float]:
    """Calls a second."""
    actor = FREE(Actor).remote()
    task = ray.remote(nothing)
    small = ray.put(b"")
    kinds: dict[str, Callable[[], object]] = {
        "tasks, one by one": lambda: [ray.get(task.remote()) for _ in range(CALLS)],
        "tasks, all at once": lambda: ray.get([task.remote() for _ in range(CALLS)]),
        "tasks with arguments": lambda: ray.get([task.remote(i, small, [i]) for i in range(CALLS)]),
        "actor calls, one by one": lambda: [ray.get(actor.nothing.remote()) for _ in range(CALLS)],
        "actor calls, all at once": lambda: ray.get([actor.nothing.remote() for _ in range(CALLS)]),
        "put and get of 1 KiB": lambda: [ray.get(ray.put(b"x" * 1024)) for _ in range(CALLS)],
    }
    rates = {}
    for kind, run in kinds.items():
        run()
        seconds = [_seconds(run) for _ in range(BATCHES)]
        rates[kind] = CALLS / statistics.median(seconds)
    return rates


def sizes(of: list[int]) -> dict[str, float]:
    """Milliseconds from the call of the first task to the answer of the second."""
    first, second = FREE(make).options(resources={"first": 1}), FREE(last).options(resources={"second": 1})
    times = {}
    for size in of:

        def run(size: int = size) -> None:
            ray.get(second.remote(first.remote(size)))

        run()
        times[f"{size} B"] = 1000 * statistics.median(_seconds(run) for _ in range(PAIRS))
    return times


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _driver(mode: str, address: str, of: list[int]) -> dict[str, float]:
    if mode == "ray":
        ray.init(address=address, log_to_driver=False)
    else:
        # Of the smallest size asked for, to see what it would be like.
        threshold = min(of, default=None)
        hoplite.ray.init(address=address, log_to_driver=False, threshold=threshold, store_size=STORE_BYTES)
    return sizes(of) if of else small_calls()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--driver", nargs=2, metavar=("MODE", "ADDRESS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.driver:
        mode, address = chosen.driver
        print(json.dumps(_driver(mode, address, chosen.sizes)))
        return
    # Alike for the nodes and the drivers, which inherit it; this cluster is local.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    cluster = Cluster()
    cluster.add_node(
        num_cpus=CPUS, resources={"first": 9}, include_dashboard=False, object_store_memory=STORE_BYTES
    )
    if chosen.sizes:
        cluster.add_node(num_cpus=CPUS, resources={"second": 9}, object_store_memory=STORE_BYTES)
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(chosen.rounds):
        for mode in MODES:
            command = [sys.executable, "-m", "lab.ray_calls", "--driver", mode, cluster.address]
            command += ["--sizes", *map(str, chosen.sizes)]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[mode].append(json.loads(answer.splitlines()[-1]))
    cluster.shutdown()
    for kind in found["ray"][0]:
        plain, ours = (statistics.median(round[kind] for round in found[mode]) for mode in MODES)
        print(f"{kind:26} ray {plain:10.2f}  hoplite {ours:10.2f}  {ours / plain:.3f} x")


if __name__ == "__main__":
    main()
