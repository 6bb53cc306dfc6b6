"""The figure of failures on Ray: the latency of every round over time, with Hoplite and without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lab.figures import BLUE, GREEN, ORANGE, RED, caption, save, subplots
from lab.plots.lines import legend
from lab.results import Case, newest

NAME = "ray-failure-latency"

#: Titles, in the order of drawing.
TITLES = {
    "ensemble": "Ray Serve, an ensemble: broadcast of 12.6 MB, a majority's answers",
    "sgd": "Asynchronous SGD: the first half's gradients (16 MB), new parameters to them",
}

LOOKS = {"ray": (ORANGE, "Ray"), "hoplite": (BLUE, "Ray with Hoplite")}


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws the figure and returns its name."""
    names = [name for name in TITLES if any(case.summary["application"] == name for case in cases)]
    figure, axes = subplots(len(names), 1, (7.0, 2.7 * len(names) + 0.5))
    for axis, name in zip(axes, names, strict=True):
        _draw(axis, [case for case in cases if case.summary["application"] == name])
        axis.set_title(TITLES[name])
    axes[-1].set_xlabel("s")
    legend(figure, axes)
    caption(figure, f"{newest(cases).document['title']}.\nEvery run has a line.")
    save(figure, folder, NAME)
    return [NAME]


def _draw(axis: Axes, cases: Sequence[Case]) -> None:
    for case in cases:
        colour, label = LOOKS[case.summary["system"]]
        for number, rounds in enumerate(case.runs):
            times, seconds = _line(rounds)
            named = None if number else label
            axis.plot(times, seconds, color=colour, lw=1.0, alpha=0.7, marker=".", ms=3, label=named)
    summary = cases[0].summary
    axis.axvline(summary["crash"], color=RED, ls="--", lw=1.2, label="a host fails")
    axis.axvline(summary["return"], color=GREEN, ls="--", lw=1.2, label="it is started again")
    axis.set_yscale("log")
    axis.set_ylabel("a round, s")


def _line(rounds: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """A line with a point for each round, at its end time."""
    return [one["began"] + one["seconds"] for one in rounds], [one["seconds"] for one in rounds]
