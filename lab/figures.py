"""The look of our figures and their files: each as PNG for the screen, and as SVG for print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lab.report import progress

#: Colours that colour-blind readers can tell apart (Okabe and Ito's palette).
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
PALE = "#BBBBBB"


_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    # A fixed salt, so that the same data give the same file.
    "svg.hashsalt": "hoplite",
}


def subplots(rows: int, columns: int, inches: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row."""
    matplotlib.rcParams.update(_STYLE)
    figure, axes = plt.subplots(rows, columns, figsize=inches, squeeze=False)
    return figure, [axis for row in axes for axis in row]


def caption(figure: Figure, text: str) -> None:
    """Adds a few lines under the figure that describe the measurement."""
    figure.supxlabel(text, fontsize=7.5, color=GREY, x=0.01, ha="left")


def save(figure: Figure, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    progress(f"figure: {path}")
    plt.close(figure)
