"""Gradients of Ray tasks, summed by Hoplite as they become ready.

    python -m examples.ray_reduce

Runs on one machine. The two lines with `hoplite.ray` are all that is not plain Ray.
"""

from __future__ import annotations

import time

import hoplite.ray
import numpy as np
import ray

WORKERS = 8
LENGTH = 4 << 20


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def gradient(weights: np.ndarray, worker: int) -> np.ndarray:
    """A stand-in: each worker takes longer than the one before."""
    time.sleep(0.1 * worker)
    return weights + np.float32(worker)


def main() -> None:
    """Sum the first half of the gradients, then add the late ones."""
    hoplite.ray.init(log_to_driver=False)
    weights = ray.put(np.zeros(LENGTH, np.float32))
    gradients = [gradient.remote(weights, worker) for worker in range(WORKERS)]
    total, late = hoplite.ray.reduce(gradients, num_returns=WORKERS // 2)
    print(f"the first {WORKERS // 2}: {ray.get(total)[0]:.0f}")
    total, _ = hoplite.ray.reduce([total, *late])
    print(f"all {WORKERS}: {ray.get(total)[0]:.0f}")
    hoplite.ray.shutdown()


if __name__ == "__main__":
    main()
