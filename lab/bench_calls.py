"""The cost of the transparent mode for small calls on Ray, and the size from which an array gains by it.

There are two kinds of rows:

- Calls: how many a second, of the kinds of Ray's own microbenchmark (`ray microbenchmark`) and of tasks with
  arguments.
- Arrays: put and got by one process, and passed from a task on one Ray node to a task on another. Both nodes
  are on this machine, where no link is a limit.

Ray as it is has one cluster. Ray with Hoplite's hooks and nodes has another; its threshold is the smallest
size measured. For each kind, the two alternate in batches of a fraction of a second, and each of them goes
first every other time. Two clusters of the same system differ by some percent as long as they live, so all is
repeated on new ones.

"computing" is the processor time of a call, of all processes of the cluster together, idle ones included. All
values are medians of all pairs of batches. "x ray" is the speed and "x computing" the processor time, as
multiples of Ray alone. Rows of several kinds together are geometric means, and vary less by chance.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from lab.interleave import OURS
from lab.plots import calls as figure
from lab.report import Report, median, progress, size_of, size_text
from lab.results import RESULTS, joined
from lab.systems import peers
from lab.systems.ray import SETTINGS
from lab.worker import Process, WorkerFailed

PARTS = ("calls", "arrays")
MODES = ("ray", OURS)
SIZES = ("64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB", "4MiB", "16MiB")

#: Least share of Ray's calls per second: less than 5 % may be lost.
TARGET = 0.95

#: Default numbers of pairs of clusters, and of pairs of batches of each kind on each cluster.
CLUSTERS = 3
ROUNDS = 5

#: Names of the rows for groups of kinds, and words in the names of their kinds.
GROUPS = {
    "all with tasks": ("tasks",),
    "all with actors": ("actor",),
    "all puts and gets": ("put of", "get of"),
    "all": ("",),
}

Found = Mapping[str, Sequence[dict[str, float]]]
"""The results of `lab.calls` in each round, by the cluster's system."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--clusters", type=int, default=CLUSTERS, help="pairs of them, one after the other")
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of batches on each pair")
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--sizes", nargs="+", default=SIZES, help="of the arrays")
    options.add_argument("--scale", type=float, default=1.0, help="of the number of calls in a batch")
    options.add_argument(
        "--null", action="store_true", help="Ray alone in both places: how far chance alone leads from 1"
    )
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figure")
    arguments = options.parse_args()
    if importlib.util.find_spec("ray") is None:
        options.error("ray is not installed: pip install hoplite[ray]")
    sizes = [size_of(text) for text in arguments.sizes]
    report = Report(
        "calls_null" if arguments.null else "calls",
        "Calls on Ray, with the transparent mode and without",
        (
            *("call", "size", *MODES, "x ray", "must reach"),
            *(f"{mode}, computing" for mode in MODES),
            "x computing",
        ),
    )
    if "calls" in arguments.only:
        measured = _measured("calls", [], arguments)
        for name, found in measured.items():
            _add_calls(name, found, report)
        for name, words in GROUPS.items():
            _add_group(name, [found for kind, found in measured.items() if _is_of(kind, words)], report)
    if "arrays" in arguments.only:
        for name, found in _measured("arrays", sizes, arguments).items():
            _add_arrays(name, found, report)
    report.finish()
    if not arguments.null:
        figure.draw(joined("calls"), arguments.figures)


def _measured(part: str, sizes: Sequence[int], arguments: argparse.Namespace) -> Mapping[str, Found]:
    """The results of `lab.calls`, by kind of call."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for pair in range(arguments.clusters):
        # The order alternates, as the second of two clusters on one machine might be slower.
        order = MODES if pair % 2 == 0 else tuple(reversed(MODES))
        try:
            _take_turns(part, sizes, order, arguments, found)
        except WorkerFailed as error:
            # Ray's processes sometimes crash while a cluster starts.
            progress(f"{part}, clusters {pair + 1} of {arguments.clusters} are left out: {error}")
        else:
            progress(f"{part}, clusters {pair + 1} of {arguments.clusters}: done")
    return found


def _take_turns(
    part: str,
    sizes: Sequence[int],
    order: Sequence[str],
    arguments: argparse.Namespace,
    found: dict[str, dict[str, list[dict[str, float]]]],
) -> None:
    """Runs all batches on one pair of clusters, and adds their results."""
    with ExitStack() as stack:
        running = {mode: stack.enter_context(_driver(part, mode, sizes, arguments)) for mode in order}
        names = running[OURS].ask("names")["names"]
        for round in range(arguments.rounds):
            for number, name in enumerate(names):
                turns = MODES if (round + number) % 2 == 0 else tuple(reversed(MODES))
                batches = {mode: running[mode].ask("batch", name=name)["found"] for mode in turns}
                of = found.setdefault(name, {mode: [] for mode in MODES})
                for mode in MODES:
                    of[mode].append(batches[mode])


@contextmanager
def _driver(part: str, mode: str, sizes: Sequence[int], arguments: argparse.Namespace) -> Iterator[Process]:
    """A cluster and its driver.

    Between its batches the cluster is idle but not stopped, as processes need longer than a batch to resume.
    """
    system = "ray" if arguments.null else mode
    command = [sys.executable, "-m", "lab.calls", part, system, str(arguments.scale), *map(str, sizes)]
    driver = Process(command, None, peers.START_SECONDS, SETTINGS)
    try:
        yield driver
    finally:
        driver.ask("end")
        driver.close()


def _times_ray(found: Found, what: str) -> float:
    """The speed as a multiple of Ray's: the median over the pairs of batches."""
    return median(ours[what] / theirs[what] for ours, theirs in zip(found[OURS], found["ray"], strict=True))


def _summary(part: str, name: str, found: Found) -> dict[str, Any]:
    medians = {
        what: {mode: median(one[what] for one in of) for mode, of in found.items()}
        for what in ("seconds", "computing")
    }
    times = {"times_ray": 1 / _times_ray(found, "seconds"), "times_computing": _times_ray(found, "computing")}
    return {"part": part, "name": name, **medians, **times}


def _computing(summary: Mapping[str, Any], unit: str, scale: float) -> list[str]:
    printed = [f"{summary['computing'][mode] * scale:.4g} {unit}" for mode in MODES]
    return [*printed, f"{summary['times_computing']:.3f}"]


def _add_calls(name: str, found: Found, report: Report) -> None:
    summary = _summary("calls", name, found)
    rates = [f"{1 / summary['seconds'][mode]:.0f}/s" for mode in MODES]
    times = f"{summary['times_ray']:.3f}"
    row = (name, "-", *rates, times, f">= {TARGET:g}", *_computing(summary, "µs", 1e6))
    report.add(row, case=name, runs=found, summary=summary)


def _is_of(kind: str, words: Sequence[str]) -> bool:
    return any(word in kind for word in words)


def _add_group(name: str, members: Sequence[Found], report: Report) -> None:
    times_ray = 1 / geometric_mean(_times_ray(found, "seconds") for found in members)
    times_computing = geometric_mean(_times_ray(found, "computing") for found in members)
    row = (name, "-", "", "", f"{times_ray:.3f}", f">= {TARGET:g}", "", "", f"{times_computing:.3f}")
    summary = {"part": "calls", "name": name, "times_ray": times_ray, "times_computing": times_computing}
    report.add(row, case=name, runs=[], summary=summary)


def _add_arrays(name: str, found: Found, report: Report) -> None:
    """Adds the rows of arrays. ``name`` ends with the size."""
    name, _, bytes = name.rpartition(" ")
    size = size_text(int(bytes))
    summary = {**_summary("arrays", name, found), "size": int(bytes)}
    times = [f"{summary['seconds'][mode] * 1e3:.2f} ms" for mode in MODES]
    row = (name, size, *times, f"{summary['times_ray']:.2f}", "", *_computing(summary, "ms", 1e3))
    report.add(row, case=f"{name} {size}", runs=found, summary=summary)


if __name__ == "__main__":
    main()
