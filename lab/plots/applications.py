"""Throughput of applications on Ray, with Hoplite and without: the paper's Figures 9 to 11 and 13."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lab.figures import caption, save, subplots
from lab.plots.lines import LOOKS
from lab.results import Case

NAMES = {
    "hoplite": "Ray with Hoplite",
    "ray": "Ray alone",
    "openmpi (tuned)": "OpenMPI, tuned",
    "gloo": "Gloo",
}

GROUP = 0.8
"""Width of a group of bars. Groups are 1 apart."""

ROW = 4
"""Number of applications in a row."""


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws all applications. Returns the name of the figure."""
    if not cases:
        return []
    found = sorted(
        (case.summary for case in cases), key=lambda summary: (summary["workers"], -summary["rate_mbit"])
    )
    names = list(dict.fromkeys(case.summary["name"] for case in cases))
    columns = min(len(names), ROW)
    rows = -(-len(names) // columns)
    figure, axes = subplots(rows, columns, (1.4 + 2.2 * columns, 0.6 + 2.6 * rows))
    handles: dict[str, Any] = {}
    for axis, name in zip(axes, names, strict=False):
        _draw(axis, [summary for summary in found if summary["name"] == name])
        bars, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, bars, strict=True))
    for axis in axes[len(names) :]:
        axis.axis("off")
    for axis in axes[::columns]:
        axis.set_ylabel("rounds a second")
    known = [label for label in NAMES.values() if label in handles]
    figure.legend(
        [handles[label] for label in known], known, loc="outside upper right", ncols=len(known), fontsize=7.5
    )
    links = " or ".join(
        dict.fromkeys(f"{summary['workers']} x {summary['rate_mbit']:g} Mbit/s" for summary in found)
    )
    caption(
        figure,
        f"{links} each way; a driver on a host of its own besides. "
        f"Runs, in turns: {_runs(cases, 'hoplite')}; of Ray alone {_runs(cases, 'ray')}.",
    )
    save(figure, folder, "applications")
    return ["applications"]


def _runs(cases: Sequence[Case], system: str) -> str:
    counts = sorted({len(case.runs[system]) for case in cases if system in case.runs}) or [0]
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


def _draw(axis: Axes, here: Sequence[dict[str, Any]]) -> None:
    """Draws one application, for each measured number of workers."""
    systems = [system for system in NAMES if any(system in summary["seconds"] for summary in here)]
    width = GROUP / len(systems)
    for number, system in enumerate(systems):
        measured = [
            (place, 1 / summary["seconds"][system])
            for place, summary in enumerate(here)
            if system in summary["seconds"]
        ]
        shift = (number - (len(systems) - 1) / 2) * width
        places = [place + shift for place, _ in measured]
        rates = [rate for _, rate in measured]
        axis.bar(places, rates, width, color=LOOKS[system]["color"], label=NAMES[system])
        if system == "hoplite":
            for shifted, (place, rate) in zip(places, measured, strict=True):
                if alone := here[place]["seconds"].get("ray"):
                    text = f"{alone * rate:.1f} x"
                    axis.annotate(text, (shifted, rate), ha="center", va="bottom", fontsize=7.5)
    axis.margins(y=0.14)
    axis.set_xticks(range(len(here)))
    axis.set_xticklabels([f"{summary['workers']}" for summary in here])
    axis.set_xlabel("workers")
    axis.set_title(here[0]["title"].replace(", ", ",\n"))
