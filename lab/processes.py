"""Groups of processes of this machine: finds, measures, stops and resumes them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path


def families(roots: Sequence[int]) -> list[int]:
    """The ids of processes and of all their descendants."""
    found: list[int] = []
    children = _children()
    waiting = list(roots)
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def processor_time(pid: int) -> float:
    """Processor seconds of all threads of a process, including ended threads. 0 if the process has ended."""
    try:
        # The clock id as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def resident(pid: int) -> dict[str, int]:
    """Resident bytes: private ones, and those of a daemon's shared arena, each under its name."""
    status = Path("/proc", str(pid), "status").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in status if line.endswith("kB")}
    return {
        "private": (int(fields["RssAnon"]) + int(fields["RssFile"])) * 1024,
        "arena": int(fields["RssShmem"]) * 1024,
    }


def pause(roots: Sequence[int]) -> list[int]:
    """Stops processes and all their descendants (SIGSTOP). Returns the ids, for ``resume``."""
    paused: list[int] = []
    for pid in families(roots):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            paused.append(pid)
    return paused


def resume(paused: Sequence[int]) -> None:
    for pid in paused:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _children() -> dict[int, list[int]]:
    """The ids of the children of every process of this machine."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may have any characters. State and parent follow it.
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                found.setdefault(int(parent), []).append(int(entry.name))
    return found
