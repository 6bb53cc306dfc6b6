"""Throughput of applications on Ray, with Hoplite and without: the paper's Figures 9 to 11."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.figures import caption, save, subplots
from lab.plots.lines import LOOKS
from lab.results import Case

NAMES = {"hoplite": "Ray with Hoplite", "ray": "Ray alone"}

BAR = 0.38
"""Width, of a place that is 1 wide."""


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws all; returns the name of the figure."""
    if not cases:
        return []
    found = sorted(
        (case.summary for case in cases), key=lambda summary: (summary["workers"], -summary["rate_mbit"])
    )
    names = list(dict.fromkeys(case.summary["name"] for case in cases))
    figure, axes = subplots(1, len(names), (1.2 + 1.8 * len(names), 3.0))
    for axis, name in zip(axes, names, strict=True):
        here = [summary for summary in found if summary["name"] == name]
        for number, (system, label) in enumerate(NAMES.items()):
            places = [place + (number - 0.5) * BAR for place in range(len(here))]
            rates = [1 / summary["seconds"][system] for summary in here]
            axis.bar(places, rates, BAR, color=LOOKS[system]["color"], label=label)
        for place, summary in enumerate(here):
            ratio = summary["seconds"]["ray"] / summary["seconds"]["hoplite"]
            axis.annotate(
                f"{ratio:.1f} x", (place, 1 / summary["seconds"]["hoplite"]), ha="center", va="bottom"
            )
        axis.margins(y=0.12)
        axis.set_xticks(range(len(here)))
        axis.set_xticklabels([f"{summary['workers']}" for summary in here])
        axis.set_xlabel("workers")
        axis.set_title(here[0]["title"].replace(", ", ",\n"))
    axes[0].set_ylabel("rounds a second")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=7.5)
    links = " or ".join(sorted({f"{summary['rate_mbit']:g} Mbit/s" for summary in found}))
    runs = " or ".join(sorted({str(len(case.runs["hoplite"])) for case in cases}))
    caption(
        figure, f"{links} each way; a driver on a host of its own besides; runs of each, in turns: {runs}."
    )
    save(figure, folder, "applications")
    return ["applications"]
