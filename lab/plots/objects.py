"""Rates of puts, gets and look-ups on a node: the Ray paper's Figure 9, with gets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import caption, save, subplots
from lab.plots import bars
from lab.report import size_text
from lab.results import Case


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws a row for each number of clients. Returns the names of the figures."""
    if not cases:
        return []
    counts = sorted({case.summary["clients"] for case in cases})
    kinds = sorted({(case.summary["call"], case.summary["size"]) for case in cases}, key=_order)
    found = {(case.summary["clients"], case.summary["call"], case.summary["size"]): case for case in cases}
    figure, axes = subplots(len(counts), len(kinds), (1.6 * len(kinds) + 0.6, 2.6 * len(counts)))
    for row, count in enumerate(counts):
        measured = [kind for kind in kinds if (count, *kind) in found]
        here = axes[row * len(kinds) : (row + 1) * len(kinds)]
        for axis, kind in zip(here, measured, strict=False):
            rates = found[(count, *kind)].summary["per_second"]
            bars.draw(axis, {name: rate / 1e3 for name, rate in rates.items()})
            axis.set_title(f"{kind[0]} {size_text(kind[1])}")
        for axis in here[len(measured) :]:
            axis.set_axis_off()
        here[0].set_ylabel(f"thousands per second, clients: {count}", fontsize=8)
    caption(figure, "Medians; the systems took turns on one machine.")
    save(figure, folder, "objects")
    return ["objects"]


def _order(kind: tuple[str, int]) -> tuple[int, str]:
    """The sort key: large objects first, then by operation."""
    return (-kind[1], kind[0])
