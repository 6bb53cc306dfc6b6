"""What the transparent mode of hoplite.ray costs small calls on Ray, and from what size an array gains by it.

Calls of the kinds of Ray's own microbenchmark (`ray microbenchmark`), and tasks with arguments: how many a
second. Arrays: put and got by one process; and from a task on one Ray node to a task on another, both on this
machine, where no link is a limit. Ray as it is, and with Hoplite's hooks and nodes (and a threshold below all
sizes) take turns, each time in a process and on a cluster of its own. Medians over the rounds, of medians of
some batches, after one that does not count. "x ray" is speed, in times of that of Ray alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.plots import calls as figure
from lab.report import RESULTS, ROOT, RUNS_MIN, Report, median, progress, size_of, size_text
from lab.results import joined
from lab.systems.ray import ALONE
from lab.turns import OURS

PARTS = ("calls", "arrays")
MODES = ("ray", OURS)
SIZES = ("64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB", "4MiB", "16MiB")

#: Of Ray's calls a second, at least: less than 5 % may be lost.
TARGET = 0.95

#: Longest that one process may take: Ray's start and end, and some thousand calls of a few milliseconds.
PROCESS_SECONDS = 240.0

Found = Mapping[str, Sequence[float]]
"""By mode, a number of each round."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=RUNS_MIN)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--sizes", nargs="+", default=SIZES, help="of the arrays")
    options.add_argument("--scale", type=float, default=1.0, help="of the number of calls in a batch")
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figure")
    arguments = options.parse_args()
    if importlib.util.find_spec("ray") is None:
        options.error("ray is not installed: pip install hoplite[ray]")
    sizes = [size_of(text) for text in arguments.sizes]
    report = Report(
        "calls",
        "Calls on Ray, with the transparent mode and without",
        ("call", "size", *MODES, "x ray", "must reach"),
    )
    if "calls" in arguments.only:
        for name, rates in _measured("calls", [], arguments).items():
            _add_calls(name, rates, report)
    if "arrays" in arguments.only:
        for name, times in _measured("arrays", sizes, arguments).items():
            _add_arrays(name, times, report)
    report.finish()
    figure.draw(joined("calls"), arguments.figures)


def _measured(part: str, sizes: Sequence[int], arguments: argparse.Namespace) -> Mapping[str, Found]:
    """What `lab.calls` finds, by the names that it gives."""
    found: dict[str, dict[str, list[float]]] = {}
    for round in range(arguments.rounds):
        # Each of the two comes first every other time.
        for mode in MODES if round % 2 == 0 else reversed(MODES):
            for name, value in _once(part, mode, arguments.scale, sizes).items():
                found.setdefault(name, {mode: [] for mode in MODES})[mode].append(value)
        for name, of in found.items():
            progress(f"round {round}, {name}: " + ", ".join(f"{mode} {of[mode][-1]:.4g}" for mode in MODES))
    return found


def _once(part: str, mode: str, scale: float, sizes: Sequence[int]) -> dict[str, float]:
    command = [sys.executable, "-m", "lab.calls", part, mode, str(scale), *map(str, sizes)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **ALONE},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PROCESS_SECONDS,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _add_calls(name: str, rates: Found, report: Report) -> None:
    medians = {mode: median(of) for mode, of in rates.items()}
    ratio = medians[OURS] / medians["ray"]
    printed = [f"{medians[mode]:.0f}/s" for mode in MODES]
    summary = {"part": "calls", "name": name, "per_second": medians, "times_ray": ratio}
    row = (name, "-", *printed, f"{ratio:.3f}", f">= {TARGET:g}")
    report.add(row, case=name, runs=rates, summary=summary)


def _add_arrays(name: str, times: Found, report: Report) -> None:
    """``name`` ends with the size."""
    name, _, bytes = name.rpartition(" ")
    size = size_text(int(bytes))
    medians = {mode: median(of) for mode, of in times.items()}
    ratio = medians["ray"] / medians[OURS]
    printed = [f"{medians[mode] * 1e3:.2f} ms" for mode in MODES]
    summary: dict[str, Any] = {"part": "arrays", "name": name, "size": int(bytes)}
    summary |= {"seconds": medians, "times_ray": ratio}
    report.add((name, size, *printed, f"{ratio:.2f}", ""), case=f"{name} {size}", runs=times, summary=summary)


if __name__ == "__main__":
    main()
