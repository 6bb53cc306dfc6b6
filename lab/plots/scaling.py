"""Collectives over many nodes: simulated times, together with the lab's measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import BLUE, ORANGE, caption, save, subplots
from lab.results import Case, newest

COLOURS = {"broadcast": BLUE, "reduce": ORANGE}


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the newest run. Returns the name of the figure."""
    if not cases:
        return []
    document = newest(cases).document
    found = [case.summary for case in cases if case.document is document]
    figure, (axis,) = subplots(1, 1, (5.2, 3.0))
    for name, colour in COLOURS.items():
        here = [summary for summary in found if summary["case"] == name]
        nodes = [summary["nodes"] for summary in here]
        ratios = [summary["simulated_seconds"] / summary["limit_seconds"] for summary in here]
        axis.plot(nodes, ratios, color=colour, marker=".", label=f"{name}, simulated")
        lab = [summary for summary in here if summary["lab_seconds"]]
        axis.plot(
            [summary["nodes"] for summary in lab],
            [summary["lab_seconds"] / summary["limit_seconds"] for summary in lab],
            ls="",
            marker="o",
            mfc="none",
            color=colour,
            label=f"{name}, lab",
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted({summary["nodes"] for summary in found}))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("nodes")
    axis.set_ylabel("times S/B")
    axis.set_ylim(bottom=0.9)
    axis.legend(fontsize=7.5)
    caption(figure, f"{document['title']}.")
    save(figure, folder, "scaling")
    return ["scaling"]
