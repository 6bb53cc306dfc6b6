"""What this machine can copy, so that the demo's rates mean something."""

from __future__ import annotations

import os
import threading
import time

import numpy as np

PIECE_BYTES = 64 << 20
"""Larger than any cache, so that memory is measured."""

ROUNDS = 4


def copy_rate() -> float:
    """Bytes per second that all cores together copy from memory to memory, already touched."""
    threads_count = os.cpu_count() or 1
    # Ones, not zeros: the kernel gives zeroed memory out lazily, and its faults would be timed.
    buffers = [(np.ones(PIECE_BYTES, np.uint8), np.ones(PIECE_BYTES, np.uint8)) for _ in range(threads_count)]

    def copy(source: np.ndarray, target: np.ndarray) -> None:
        for _ in range(ROUNDS):
            np.copyto(target, source)  # releases the GIL

    threads = [threading.Thread(target=copy, args=pair) for pair in buffers]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return threads_count * ROUNDS * PIECE_BYTES / (time.perf_counter() - start)
