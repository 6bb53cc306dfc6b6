"""Hoplite nodes beside all nodes of a Ray cluster: ``python -m lab.ray_nodes HEAD start STORE``, or ``stop``.

``STORE`` is in bytes. A large part of every store is used once: the first use of memory faults it in, which
takes as much of two cores as an application does.
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
    address, what, *sizes = sys.argv[1:]
    if what == "start":
        start(address, *sizes)
    else:
        stop(address)
