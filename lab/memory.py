"""Memory for sources and results that all systems of one run share, as they alternate.

A virtual machine gives freed memory back to its host, a little every two seconds. After 4 GiB were freed,
this took a third of both processors for 0.7 s of every 2.6 (`/proc/stat`, steal), for more than half a
minute. It slowed down the system that ran at the time. So nothing large is freed between turns. If this
cannot be avoided, as when processes end, the next turn waits (`settle`). Besides, the machine could not hold
256 MiB twice for each of sixteen hosts and of several systems.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from lab.report import progress

#: Memory that is being given back is missing from the free memory for a moment. The free memory is settled if
#: it changed by less than this in so many seconds, in which memory is given back twice.
STILL_BYTES = 24 << 20
STILL_SECONDS = 6.0

#: Interval of the readings. Giving memory back takes some tenths of a second each time.
LOOK_SECONDS = 0.1

#: Longest wait.
SETTLE_SECONDS_MAX = 120.0

#: The memory of each host: its source, and room for its result.
PARTS = ("source", "result")


class Memory:
    """Files in a file system of huge pages, which a process's own large arrays have too.

    The file system is unmounted at once. The files exist as long as this process has them open.
    """

    def __init__(self, hosts: int) -> None:
        with tempfile.TemporaryDirectory(prefix="hoplite-lab-memory-") as folder:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=always,size=100%", "lab", folder], check=True)
            try:
                self._open = {
                    (host, part): os.open(Path(folder, f"{host}-{part}"), os.O_CREAT | os.O_RDWR)
                    for host in range(hosts)
                    for part in PARTS
                }
            finally:
                subprocess.run(["umount", "--lazy", folder], check=True)

    def of(self, host: int) -> dict[str, str]:
        """The paths of the parts of this host's memory, for `mapped`."""
        return {part: f"/proc/{os.getpid()}/fd/{self._open[host, part]}" for part in PARTS}

    def close(self) -> None:
        for file in self._open.values():
            os.close(file)


def mapped(path: str, size: int) -> np.ndarray:
    """The first ``size`` bytes of a part as float32, with their pages allocated. A part never shrinks."""
    file = os.open(path, os.O_RDWR)
    try:
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        pages = mmap.mmap(file, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(file)
    return np.frombuffer(pages, np.float32)


def settle() -> None:
    """Waits until the machine's free memory is settled, ``SETTLE_SECONDS_MAX`` at most."""
    began = since = time.monotonic()
    least = most = _free_bytes()
    while (now := time.monotonic()) < min(since + STILL_SECONDS, began + SETTLE_SECONDS_MAX):
        time.sleep(LOOK_SECONDS)
        free = _free_bytes()
        least, most = min(least, free), max(most, free)
        if most - least > STILL_BYTES:
            since, least, most = now, free, free
    if now - began > 2 * STILL_SECONDS:
        progress(f"waited {now - began:.0f} s for free memory to hold still")


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/meminfo has no MemFree")
