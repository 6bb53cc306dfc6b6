"""Starts a Hoplite node for every node of a Ray cluster: ``python -m lab.ray_nodes HEAD STORE``.

``STORE`` is in bytes. Without it, the nodes are stopped. A large part of every store is used once beforehand,
because the first use of memory causes page faults. These take as much of two cores as an application.
"""

from __future__ import annotations

import sys

import hoplite.ray
import numpy as np
import ray

from lab.systems.hoplite import TOUCHED_BYTES_MAX

#: Share of each store that one object uses once. All together use at most ``TOUCHED_BYTES_MAX``.
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
