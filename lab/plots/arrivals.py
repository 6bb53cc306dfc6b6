"""Latency of collectives whose hosts come one after the other, by interval: the paper's Figure 8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import GREY, caption, save, subplots
from lab.plots import lines
from lab.report import size_text
from lab.results import Case, newest
from lab.systems import STAGGERED_CASES


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the cases with the newest run's hosts and size. Returns the names of the figures."""
    if not cases:
        return []
    alike = ("size", "hosts", "rate_mbit")
    last = newest(cases).summary
    chosen = [case for case in cases if all(case.summary[key] == last[key] for key in alike)]
    names = [name for name in STAGGERED_CASES if any(case.summary["case"] == name for case in chosen)]
    figure, axes = subplots(1, len(names), (max(2.9 * len(names), lines.WIDTH_MIN), 3.4))
    for axis, name in zip(axes, names, strict=True):
        here = [case.summary for case in chosen if case.summary["case"] == name]
        lines.draw(axis, here, lambda summary: float(summary["interval_seconds"]) * 1e3)
        arrivals = sorted((one["interval_seconds"] * 1e3, one["last_arrival_seconds"] * 1e3) for one in here)
        axis.plot(*zip(*arrivals[1:], strict=True), color=GREY, ls=":", lw=1.0, label="last arrival")
        axis.set_title(name)
        axis.set_xlabel("ms between two arrivals")
    axes[0].set_ylabel("ms")
    lines.legend(figure, axes)
    caption(
        figure,
        f"{last['hosts']} hosts, {size_text(last['size'])}, {last['rate_mbit']:g} Mbit/s each way; "
        f"from the first arrival to the last result, medians of {len(chosen[0].runs)} runs.",
    )
    save(figure, folder, "arrivals")
    return ["arrivals"]
