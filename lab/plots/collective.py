"""Latency of collectives by hosts: the paper's Figure 7, and its Figure 14 for small objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lab.figures import caption, save, subplots
from lab.plots import lines
from lab.rates import TBF_BURST
from lab.report import size_text
from lab.results import Case
from lab.systems import CASES

#: From this size on an object has a figure to itself and its like.
LARGE_BYTES_MIN = 1 << 20


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws what there is; returns the names of the figures."""
    if not cases:
        return []
    # Links of one rate only in a figure: the one most was measured with.
    rate = Counter(case.summary["rate_mbit"] for case in cases).most_common(1)[0][0]
    chosen = [case for case in cases if case.summary["rate_mbit"] == rate]
    large = [case for case in chosen if case.summary["size"] >= LARGE_BYTES_MIN]
    small = [case for case in chosen if case.summary["size"] < LARGE_BYTES_MIN]
    drawn = []
    for name, part in (("collectives", large), ("collectives-small", small)):
        if part:
            _draw(part, rate, folder, name)
            drawn.append(name)
    return drawn


def _draw(cases: Sequence[Case], rate: float, folder: Path, name: str) -> None:
    found = [case.summary for case in cases]
    sizes = sorted({summary["size"] for summary in found})
    rows = [case for case in CASES if any(summary["case"] == case for summary in found)]
    figure, axes = subplots(
        len(rows), len(sizes), (max(2.6 * len(sizes), lines.WIDTH_MIN), 1.9 * len(rows) + 0.9)
    )
    places = [(case, size) for case in rows for size in sizes]
    for axis, (case, size) in zip(axes, places, strict=True):
        here = [summary for summary in found if (summary["case"], summary["size"]) == (case, size)]
        lines.draw(axis, here, lambda summary: float(summary["hosts"]), limited=size >= LARGE_BYTES_MIN)
        axis.set_title(f"{case} {size_text(size)}")
        axis.set_xticks(sorted({summary["hosts"] for summary in found}))
    for axis in axes[-len(sizes) :]:
        axis.set_xlabel("hosts")
    for axis in axes[:: len(sizes)]:
        axis.set_ylabel("ms")
    lines.legend(figure, axes)
    runs = " or ".join(str(count) for count in sorted({len(case.runs) for case in cases}))
    text = f"{rate:g} Mbit/s each way; medians of {runs} runs; the systems took turns."
    if sizes[0] < LARGE_BYTES_MIN:
        text += (
            f"\nA link lets {size_text(TBF_BURST)} through at once: S/B is no limit for objects this small."
        )
    caption(figure, text)
    save(figure, folder, name)
