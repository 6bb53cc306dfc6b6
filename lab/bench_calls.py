"""What the transparent mode of hoplite.ray costs small calls on Ray, and from what size an array gains by it.

Calls of the kinds of Ray's own microbenchmark (`ray microbenchmark`), and tasks with arguments: how many a
second. Arrays: put and got by one process; and from a task on one Ray node to a task on another, both on this
machine, where no link is a limit. Ray as it is, and Ray with hooks and nodes of Hoplite's (and a threshold of
the smallest size), have a cluster each, and do a batch of everything in turn, the other's processes stopped.
Medians over the rounds; "x ray" is that of a round's speed in times of that of Ray alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lab.plots import calls as figure
from lab.report import RESULTS, Report, median, progress, size_of, size_text
from lab.results import joined
from lab.systems import peers
from lab.systems.ray import SETTINGS
from lab.turns import OURS
from lab.worker import Process

PARTS = ("calls", "arrays")
MODES = ("ray", OURS)
SIZES = ("64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB", "4MiB", "16MiB")

#: Of Ray's calls a second, at least: less than 5 % may be lost.
TARGET = 0.95

#: Pairs that the medians are of: one batch is a fraction of a second, which other things disturb.
ROUNDS = 30

#: What Ray's processes do first when they go on after a stop takes less.
RESUME_SECONDS = 1.0

Found = Mapping[str, Sequence[float]]
"""By mode, a number of each round."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=ROUNDS)
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
    with ExitStack() as stack:
        running = {mode: stack.enter_context(_driver(part, mode, sizes, arguments)) for mode in MODES}
        for round in range(arguments.rounds):
            # Each of the two comes first every other time.
            for mode in MODES if round % 2 == 0 else reversed(MODES):
                for name, value in running[mode]().items():
                    found.setdefault(name, {mode: [] for mode in MODES})[mode].append(value)
            progress(f"{part}, round {round + 1} of {arguments.rounds}")
    return found


@contextmanager
def _driver(
    part: str, mode: str, sizes: Sequence[int], arguments: argparse.Namespace
) -> Iterator[Callable[[], dict[str, float]]]:
    """A cluster and its driver, which stand still but for the batches that are asked for."""
    command = [sys.executable, "-m", "lab.calls", part, mode, str(arguments.scale), *map(str, sizes)]
    driver = Process(command, None, peers.START_SECONDS, SETTINGS)
    paused = peers.pause([driver.pid])

    def batch() -> dict[str, float]:
        nonlocal paused
        peers.resume(paused)
        time.sleep(RESUME_SECONDS)
        answer: dict[str, float] = driver.ask("batch")["found"]
        paused = peers.pause([driver.pid])
        return answer

    try:
        yield batch
    finally:
        peers.resume(paused)
        driver.ask("end")
        driver.close()


def _times_ray(found: Found) -> float:
    """The median over the rounds."""
    return median(ours / theirs for ours, theirs in zip(found[OURS], found["ray"], strict=True))


def _add_calls(name: str, rates: Found, report: Report) -> None:
    medians = {mode: median(of) for mode, of in rates.items()}
    ratio = _times_ray(rates)
    printed = [f"{medians[mode]:.0f}/s" for mode in MODES]
    summary = {"part": "calls", "name": name, "per_second": medians, "times_ray": ratio}
    row = (name, "-", *printed, f"{ratio:.3f}", f">= {TARGET:g}")
    report.add(row, case=name, runs=rates, summary=summary)


def _add_arrays(name: str, times: Found, report: Report) -> None:
    """``name`` ends with the size."""
    name, _, bytes = name.rpartition(" ")
    size = size_text(int(bytes))
    medians = {mode: median(of) for mode, of in times.items()}
    ratio = 1 / _times_ray(times)
    printed = [f"{medians[mode] * 1e3:.2f} ms" for mode in MODES]
    summary: dict[str, Any] = {"part": "arrays", "name": name, "size": int(bytes)}
    summary |= {"seconds": medians, "times_ray": ratio}
    report.add((name, size, *printed, f"{ratio:.2f}", ""), case=f"{name} {size}", runs=times, summary=summary)


if __name__ == "__main__":
    main()
