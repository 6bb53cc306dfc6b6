"""A driver on Ray with Hoplite: ``python -m lab.ray_arrivals HEAD``, driven line by line (see `lab.worker`).

One task on each host returns an array. They end one after the other, at fixed times. As programs do, the
driver asks for their sum before the first task has ended, and gets it.
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

#: Time between the call of all tasks and the end of the first. In this time all start and make their arrays.
AHEAD_SECONDS = 3.0


class CameLate(RuntimeError):
    """A task was not ready to end at its time."""


def appear(size: int, seed: int, at: float | None) -> np.ndarray:
    """An array, returned at that time, or at once if there is none."""
    array = pattern(size, seed)
    if at is not None:
        if (late := time.monotonic() - at) > 0:
            raise CameLate(f"source {seed} was ready {late:.1f} s after it should have ended")
        wait_until(at)
    return array


class Calls:
    """The commands of the driver."""

    def __init__(self, head: str) -> None:
        hoplite.ray.init(head, log_to_driver=False)
        self._appear = ray.remote(num_cpus=0)(appear)

    def add_up(self, hosts: list[int], size: int, interval: float | None) -> dict[str, Any]:
        """Sums one source of each host, ``interval`` seconds apart (None: as soon as each is ready).

        Answers with the seconds from the first task's end until the sum is here.
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
