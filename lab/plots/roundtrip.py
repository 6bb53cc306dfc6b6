"""Round trips between two hosts, a bar for each system: the paper's Figure 6."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import caption, save, subplots
from lab.plots import bars
from lab.report import size_text
from lab.results import Case, newest


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the sizes measured with the newest run's links. Returns the names of the figures."""
    if not cases:
        return []
    rate = newest(cases).summary["rate_mbit"]
    chosen = sorted(
        (case for case in cases if case.summary["rate_mbit"] == rate), key=lambda case: case.summary["size"]
    )
    figure, axes = subplots(1, len(chosen), (2.4 * len(chosen) + 0.6, 2.8))
    for axis, case in zip(axes, chosen, strict=True):
        times = {name: one["seconds"] * 1e3 for name, one in case.summary["systems"].items()}
        bars.draw(axis, times, case.summary["limit_seconds"] * 1e3)
        axis.set_title(size_text(case.summary["size"]))
    axes[0].set_ylabel("ms")
    caption(
        figure,
        f"Two hosts, {rate:g} Mbit/s each way; medians of {len(chosen[0].runs)} runs. "
        "Dashed: a bare TCP connection.",
    )
    save(figure, folder, "roundtrip")
    return ["roundtrip"]
