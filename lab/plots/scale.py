"""Time of operations by number of nodes and of objects, and memory during churn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lab.figures import BLUE, GREEN, GREY, ORANGE, RED, caption, save, subplots
from lab.plots import lines
from lab.results import Case

LOOKS: dict[str, dict[str, Any]] = {
    "join": {"color": BLUE, "marker": "o"},
    "death": {"color": RED, "marker": "D"},
    "put": {"color": ORANGE, "marker": "s"},
    "fill": {"color": ORANGE, "marker": "s"},
    "get": {"color": GREEN, "marker": "^"},
    "delete": {"color": "#CC79A7", "marker": "v"},
    "clear": {"color": "#56B4E9", "marker": "x"},
    "broadcast": {"color": "#56B4E9", "marker": "P"},
    "reduce": {"color": GREY, "marker": "*"},
}

#: Operations whose time is a share of that of many at once. Simulated processors take no time, so it means
#: nothing.
SHARES = ("fill", "clear")

HOW = (("real", "real daemons on one machine"), ("simulated", "simulated, processors cost nothing"))

ACROSS = {"nodes": "nodes", "objects": "objects on four nodes"}

MIB = 1 << 20


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the times by nodes and by objects, and memory over time. Returns the names of the figures."""
    drawn = []
    for against in ACROSS:
        found = [case.summary for case in cases if case.summary["against"] == against]
        if found:
            drawn.append(_operations(found, against, folder))
    soaks = [case for case in cases if case.summary["against"] == "time"]
    if soaks:
        drawn.append(_soak(soaks[0], folder))
    return drawn


def _operations(found: Sequence[dict[str, Any]], against: str, folder: Path) -> str:
    figure, axes = subplots(1, len(HOW) + 1, (3.1 * (len(HOW) + 1), 3.4))
    for axis, (how, title) in zip(axes, HOW, strict=False):
        here = [one for one in found if one["how"] == how]
        drawn = [name for name in LOOKS if how == "real" or name not in SHARES]
        for name, look in ((name, LOOKS[name]) for name in drawn):
            points = sorted((one[against], one["seconds"]) for one in here if one["operation"] == name)
            _line(axis, points, name, look)
        worst = sorted((one[against], one["worst_seconds"]) for one in here if one["worst_seconds"])
        _line(axis, worst, "longest round trip", {"color": RED, "ls": ":"})
        axis.set_title(title)
    turns = axes[-1]
    for name in ("join", "death", "clear"):
        points = sorted(
            (one[against], one["turn_seconds"])
            for one in found
            if one["operation"] == name and "turn_seconds" in one
        )
        _line(turns, points, name, LOOKS[name])
    turns.axhline(10.0, color="black", ls="--", lw=1.0)
    turns.set_title("longest turn of a control loop")
    for axis in axes:
        axis.set_xlabel(ACROSS[against])
        axis.set_xscale("log")
        axis.set_xticks(sorted({across for line in axis.lines for across in _places(line)}))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.minorticks_off()
        lines.scale(axis)
    axes[0].set_ylabel("ms")
    # Collect the lines of all axes, as each axis has only some of them.
    handles: dict[str, Any] = {}
    for axis in axes:
        found_here, labels = axis.get_legend_handles_labels()
        handles |= dict(zip(labels, found_here, strict=True))
    figure.legend(
        handles.values(), handles.keys(), ncols=10, fontsize=7.5, labelcolor=GREY, loc="outside upper left"
    )
    caption(figure, "Medians. Dashed: the longest turn that is promised, 10 ms.")
    name = f"scale-{against}"
    save(figure, folder, name)
    return name


def _line(axis: Axes, points: Sequence[tuple[float, float]], label: str, look: dict[str, Any]) -> None:
    """Draws a line without the points at zero, such as deaths after which no round trip was slow."""
    points = [(across, seconds) for across, seconds in points if seconds > 0]
    if points:
        times = [seconds * 1e3 for _, seconds in points]
        axis.plot([across for across, _ in points], times, label=label, **(lines.USUAL | look))


def _places(line: Line2D) -> list[float]:
    """The places of a line's points. A line across the whole axis has none."""
    found = np.asarray(line.get_xdata(), float)
    return [float(across) for across in found if across > 1]


def _soak(case: Case, folder: Path) -> str:
    figure, (memory, counts) = subplots(1, 2, (7.6, 3.0))
    samples, summary = case.runs, case.summary
    for node in sorted({node for one in samples for node in one["nodes"]}):
        here = [(one["seconds"] / 60, one["nodes"][node]) for one in samples if node in one["nodes"]]
        stays = node in summary["growth_bytes"]
        look = {"lw": 1.2} if stays else {"lw": 0.6, "color": GREY, "ls": ":"}
        minutes = [at for at, _ in here]
        told = f"node {node}" if stays else None
        memory.plot(minutes, [one["private"] / MIB for _, one in here], label=told, **look)
        if stays:
            counts.plot(minutes, [one["tombstones"] / 1e3 for _, one in here], label=told, **look)
    memory.set_title("private memory, MiB")
    counts.set_title("tombstones, thousands")
    for axis in (memory, counts):
        axis.set_xlabel("minutes")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7.5)
    caption(
        figure,
        f"{summary['calls']:,} calls, {summary['faults']} deaths and leaves of two other nodes (dotted). "
        "A tombstone stands for ten minutes.",
    )
    save(figure, folder, "scale-soak")
    return "scale-soak"
