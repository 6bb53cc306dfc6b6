"""Speed of calls on Ray with Hoplite, as a multiple of Ray alone, and of arrays by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import BLUE, caption, save, subplots
from lab.plots.lines import LOOKS
from lab.report import size_text
from lab.results import Case


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws all kinds of calls. Returns the name of the figure."""
    calls = [case.summary for case in cases if case.summary["part"] == "calls"]
    arrays = [case.summary for case in cases if case.summary["part"] == "arrays"]
    if not calls or not arrays:
        return []
    figure, (left, right) = subplots(1, 2, (9.0, 0.7 + 0.2 * len(calls)))
    left.barh([summary["name"] for summary in calls], [summary["times_ray"] for summary in calls], color=BLUE)
    left.invert_yaxis()
    left.set_title("Calls, nothing large")
    for name, marker in zip(dict.fromkeys(summary["name"] for summary in arrays), "os^v", strict=False):
        here = sorted((one for one in arrays if one["name"] == name), key=lambda summary: summary["size"])
        look = {**LOOKS["hoplite"], "marker": marker}
        right.plot([one["size"] for one in here], [one["times_ray"] for one in here], label=name, **look)
    sizes = sorted({summary["size"] for summary in arrays})
    right.set_xscale("log", base=2)
    right.set_xticks(sizes, [size_text(size) for size in sizes], rotation=60)
    right.set_title("Arrays of which all go through Hoplite")
    right.legend(fontsize=7.5)
    for line in (left.axvline, right.axhline):
        line(1.0, color="black", ls="--", lw=1.0)
    left.set_xlabel("speed, in times of Ray alone")
    right.set_ylabel("speed, in times of Ray alone")
    caption(figure, "Medians; the two took turns, each on a cluster of its own on one machine.")
    save(figure, folder, "calls")
    return ["calls"]
