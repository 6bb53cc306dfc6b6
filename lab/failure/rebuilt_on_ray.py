"""Removes a node of a Ray cluster of its own, and times how long its results take to be rebuilt.

``python -m lab.failure.rebuilt_on_ray hoplite|ray CASE...`` prints a line of JSON for each case. It has the
case's name and the seconds from the loss of the node until tasks have read all its results.

The driver has no processor. One node makes and reads all results. It is removed, an equal new one is added at
once, and the same results are read again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.cluster_utils import Cluster

BYTES = 10_000_000

CHAIN = 8

#: Time-out of a case in seconds, as a case may never end.
PATIENCE = 120.0

#: Settings with which Ray declares a silent node dead after two seconds.
QUICK_DEATHS = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 100,
    "health_check_failure_threshold": 20,
}

NODE = {"num_cpus": 2, "object_store_memory": 500_000_000}

Array = npt.NDArray[np.uint8]


@ray.remote(max_retries=1)  # type: ignore[untyped-decorator]
def _large() -> Array:
    return np.zeros(BYTES, np.uint8)


@ray.remote(max_retries=1)  # type: ignore[untyped-decorator]
def _more(array: Array) -> Array:
    return array + np.uint8(1)


@ray.remote  # type: ignore[untyped-decorator]
def _first_of(array: Array) -> int:
    return int(array[0])


def _result() -> list[ray.ObjectRef]:
    return [_large.remote()]


def _four_of_one_argument() -> list[ray.ObjectRef]:
    argument = _large.remote()
    return [_more.remote(argument) for _ in range(4)]


def _whose_argument_is_gone() -> list[ray.ObjectRef]:
    return [_more.remote(_large.remote())]


def _chain() -> list[ray.ObjectRef]:
    results = [_large.remote()]
    for _ in range(CHAIN - 1):
        results.append(_more.remote(results[-1]))
    return results


def _put() -> list[ray.ObjectRef]:
    return [ray.put(np.zeros(BYTES, np.uint8))]


CASES: dict[str, Callable[[], list[ray.ObjectRef]]] = {
    "a result": _result,
    "four results of one argument": _four_of_one_argument,
    "a result whose argument is gone": _whose_argument_is_gone,
    "a chain of eight": _chain,
    "a value that was put": _put,
}


def main() -> None:
    system, *names = sys.argv[1:]
    cluster = Cluster()
    cluster.add_node(num_cpus=0, include_dashboard=False, _system_config=QUICK_DEATHS)
    if system == "hoplite":
        import hoplite.ray

        hoplite.ray.init(address=cluster.address, log_to_driver=False)
    else:
        ray.init(address=cluster.address, log_to_driver=False)
    node = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    for name in names:
        results = CASES[name]()
        before = _read(results)
        began = time.monotonic()
        cluster.remove_node(node, allow_graceful=False)
        node = cluster.add_node(**NODE)
        after: Any = None
        try:
            after = _read(results)
        except ray.exceptions.RayError as error:
            print(json.dumps({"case": name, "error": str(error)[-500:]}), flush=True)
        else:
            assert after == before
            print(json.dumps({"case": name, "seconds": time.monotonic() - began}), flush=True)
        del results
        time.sleep(1)
    ray.shutdown()
    cluster.shutdown()


def _read(results: Sequence[ray.ObjectRef]) -> list[int]:
    """Reads the results in tasks, so that this process has no copies."""
    found: list[int] = ray.get([_first_of.remote(result) for result in results], timeout=PATIENCE)
    return found


if __name__ == "__main__":
    main()
