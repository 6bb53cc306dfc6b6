"""Starts a Hoplite node beside every node of a Ray cluster: ``python -m lab.ray_nodes HEAD STORE``.

``STORE`` is in bytes; without it, the nodes are ended. A large part of every store is used once beforehand:
the first use of memory causes page faults, which take as much of two cores as an application does.
"""

from __future__ import annotations

import sys

import hoplite.ray
import numpy as np
import ray

from lab.systems.hoplite import TOUCHED_BYTES_MAX

#: Of each store, once, in one object; of all together no more than where Hoplite is measured alone.
USED = 0.6


def start(head: str, store: str) -> None:
    hoplite.ray.init(head, store_size=int(store), log_to_driver=False)
    used = min(int(USED * int(store)), TOUCHED_BYTES_MAX // len(ray.nodes()))
    reference = ray.put(np.ones(used, np.uint8))
    ray.get(hoplite.ray.broadcast(reference))
    hoplite.ray.shutdown()


def stop(head: str) -> None:
    hoplite.ray.init(head, log_to_driver=False)
    hoplite.ray.shutdown(stop_nodes=True)


if __name__ == "__main__":
    address, *sizes = sys.argv[1:]
    if sizes:
        start(address, *sizes)
    else:
        stop(address)
