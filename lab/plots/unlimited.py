"""Broadcast over links without limits, a bar for each system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import caption, save, subplots
from lab.plots import bars
from lab.report import size_text
from lab.results import Case, newest


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the size of the newest run. Returns the names of the figures."""
    if not cases:
        return []
    size = newest(cases).summary["size"]
    chosen = sorted(
        (case for case in cases if case.summary["size"] == size), key=lambda case: case.summary["hosts"]
    )
    figure, axes = subplots(1, len(chosen), (2.4 * len(chosen) + 0.6, 2.8))
    for axis, case in zip(axes, chosen, strict=True):
        times = {name: one["seconds"] * 1e3 for name, one in case.summary["systems"].items()}
        bars.draw(axis, times, case.summary["limit_seconds"] * 1e3)
        axis.set_title(f"{case.summary['hosts']} hosts")
    axes[0].set_ylabel("ms")
    caption(figure, f"Broadcast of {size_text(size)}; medians. Dashed: S/B between two hosts, by iperf3.")
    save(figure, folder, "unlimited")
    return ["unlimited"]
