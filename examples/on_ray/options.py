"""Options that all programs have, the Ray cluster they ask for, and the time of their rounds."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """For a program with this docstring, whose `rounds` take seconds on a laptop."""
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument("--address", help="of a Ray cluster; default: one is started on this machine")
    options.add_argument("--workers", type=int, default=8, help="actors, of one CPU each (default: 8)")
    options.add_argument("--rounds", type=int, default=rounds, help=f"default: {rounds}")
    options.add_argument("--seconds", type=Path, help="file for the seconds of each round, as a JSON list")
    return options


def cluster(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `ray.init`: a cluster that is there, or one with a CPU for each worker."""
    where = {"address": options.address} if options.address else {"num_cpus": options.workers}
    return {**where, "log_to_driver": False}


def rounds(options: argparse.Namespace) -> Iterator[int]:
    """Counts the rounds, and tells at their end how long they took."""
    seconds = []
    for number in range(options.rounds):
        began = time.perf_counter()
        yield number
        seconds.append(time.perf_counter() - began)
    print(f"{len(seconds)} rounds in {sum(seconds):.1f} s")
    if options.seconds:
        options.seconds.write_text(json.dumps(seconds))
