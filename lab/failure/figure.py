"""The figure of the failure benchmark, drawn from its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lab.failure import ensemble, sgd
from lab.figures import BLUE, GREEN, GREY, ORANGE, RED, caption, save, subplots
from lab.report import median

TITLES = {"ensemble": ensemble.Frontend.title, "sgd": sgd.Server.title}


def draw(document: dict[str, Any], folder: Path) -> list[str]:
    """Draws the figure and returns its name."""
    cases = {case["case"]: case for case in document["cases"]}
    names = [name for name in TITLES if f"{name}, a failure" in cases]
    figure, axes = subplots(len(names), 1, (7.0, 2.7 * len(names) + 0.5))
    for axis, name in zip(axes, names, strict=True):
        _draw(axis, cases[f"{name}, no failure"], cases[f"{name}, a failure"])
        axis.set_title(TITLES[name])
    axes[-1].set_xlabel("step")
    caption(
        figure,
        f"{document['title']}. Bold: medians of the runs; thin: single runs.\n"
        f"Computing is a sleep (a batch {ensemble.COMPUTE_SECONDS * 1e3:.0f} ms, "
        f"a gradient {sgd.COMPUTE_SECONDS * 1e3:.0f} ms): "
        "two cores cannot compute and be the network of nine hosts.",
    )
    save(figure, folder, "failure-latency")
    return ["failure-latency"]


def _draw(axis: Axes, without: dict[str, Any], failing: dict[str, Any]) -> None:
    for case, colour, label in ((without, BLUE, "no failure"), (failing, ORANGE, "a participant fails")):
        runs = [[seconds * 1e3 for seconds in run["latencies"]] for run in case["runs"]]
        for run in runs:
            axis.plot(run, color=colour, lw=0.6, alpha=0.5)
        axis.plot(_medians(runs), color=colour, lw=1.8, label=label)
    summary = failing["summary"]
    for step, colour, label in (
        (summary["fail_step"], RED, "it is killed"),
        (summary["rejoin_step"], GREEN, "it is back"),
    ):
        axis.axvline(step, color=colour, ls="--", lw=1.2, label=label)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("ms")
    axis.legend(ncols=4, fontsize=7.5, labelcolor=GREY)


def _medians(runs: Sequence[Sequence[float]]) -> list[float]:
    return [median(step) for step in zip(*runs, strict=True)]
