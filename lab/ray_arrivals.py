"""A driver on Ray with Hoplite: ``python -m lab.ray_arrivals HEAD``, driven line by line (see `lab.worker`).

One task on each host returns an array, at instants that are known beforehand, one after the other. The driver
asks for their sum before the first task has ended, as programs do, and gets it.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import hoplite.ray
import numpy as np
import ray

from lab.systems.peers import answers
from lab.systems.ray_driver import SHARE
from lab.worker import CALL_SECONDS, checksum, pattern, serve, wait_until

#: Ahead of the first task's end by this much lies the call of all: they run by then, and have their arrays.
AHEAD_SECONDS = 3.0


class CameLate(RuntimeError):
    """A task was not ready to end at its instant."""


def appear(size: int, seed: int, at: float | None) -> np.ndarray:
    """An array, at that instant; without one at once."""
    array = pattern(size, seed)
    if at is not None:
        if (late := time.monotonic() - at) > 0:
            raise CameLate(f"source {seed} was ready {late:.1f} s after it should have ended")
        wait_until(at)
    return array


class Calls:
    """What the driver can be told to do."""

    def __init__(self, head: str) -> None:
        hoplite.ray.init(head, log_to_driver=False)
        self._appear = ray.remote(num_cpus=0)(appear)

    def add_up(self, hosts: list[int], size: int, interval: float | None) -> dict[str, Any]:
        """One source on each host, ``interval`` seconds apart (None: whenever they are ready), summed up.

        Answers with the seconds from the first task's end to the sum, which is here then.
        """
        first = time.monotonic() + AHEAD_SECONDS
        sources = [
            self._appear.options(resources={f"host{host}": SHARE}).remote(
                size, number, None if interval is None else first + number * interval
            )
            for number, host in enumerate(hosts)
        ]
        total, _ = hoplite.ray.reduce(sources, timeout=CALL_SECONDS)
        array = ray.get(total)
        return {"seconds": time.monotonic() - first, "checksum": checksum(array)}


def main(head: str) -> None:
    with answers() as pipe:
        serve(Calls(head), sys.stdin, pipe)
        hoplite.ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
