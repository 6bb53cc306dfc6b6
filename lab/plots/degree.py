"""Reduce by the degree of its tree, and the cost model's choice: the paper's Figure 15."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import BLUE, GREEN, ORANGE, RED, caption, save, subplots
from lab.plots.lines import WIDTH_MIN, legend, scale
from lab.report import size_text
from lab.results import Case, newest

TREES = {"chain": (GREEN, "o"), "binary": (ORANGE, "s"), "star": (RED, "^")}
MODEL = "hoplite"


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the cases with the newest run's links. Returns the names of the figures."""
    if not cases:
        return []
    rate = newest(cases).summary["rate_mbit"]
    found = sorted(
        (case.summary for case in cases if case.summary["rate_mbit"] == rate),
        key=lambda summary: int(summary["size"]),
    )
    counts = sorted({summary["hosts"] for summary in found})
    figure, axes = subplots(1, len(counts), (max(2.9 * len(counts), WIDTH_MIN), 3.2))
    for axis, count in zip(axes, counts, strict=True):
        here = [summary for summary in found if summary["hosts"] == count]
        sizes = [size_text(summary["size"]) for summary in here]
        for tree, (colour, marker) in TREES.items():
            times = [summary["systems"][tree]["ratio"] for summary in here]
            axis.plot(sizes, times, color=colour, marker=marker, markersize=4, lw=1.0, label=tree)
        ours = [summary["systems"][MODEL] for summary in here]
        axis.plot(
            sizes,
            [one["ratio"] for one in ours],
            ls="",
            marker="o",
            markersize=11,
            mfc="none",
            mec=BLUE,
            label="the model's choice",
        )
        for size, one in zip(sizes, ours, strict=True):
            axis.annotate(one["chosen"], (size, one["ratio"]), (0, 9), textcoords="offset points", fontsize=7)
        scale(axis)
        axis.set_title(f"{count} hosts")
    axes[0].set_ylabel("times S/B")
    legend(figure, axes)
    caption(figure, f"{rate:g} Mbit/s each way; medians, the trees took turns.")
    save(figure, folder, "degree")
    return ["degree"]
