"""A line for each system over a varying quantity, together with the physical limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from lab.figures import BLUE, GREEN, GREY, ORANGE, PALE, RED

#: The look of each system in every figure. Hoplite stands out, and two forms of a library share a colour.
LOOKS: dict[str, dict[str, Any]] = {
    "hoplite": {"color": BLUE, "marker": "o", "lw": 2.0, "zorder": 4},
    "openmpi": {"color": ORANGE, "marker": "s", "ls": ":"},
    "openmpi (tuned)": {"color": ORANGE, "marker": "s"},
    "mpich": {"color": GREEN, "marker": "^", "ls": ":"},
    "mpich (tuned)": {"color": GREEN, "marker": "^"},
    "gloo": {"color": RED, "marker": "D"},
    "ray": {"color": "#CC79A7", "marker": "v"},
    "dask": {"color": "#56B4E9", "marker": "x"},
    "bare relays": {"color": "grey", "marker": "+"},
    "bare chain": {"color": "grey", "marker": "+"},
}
USUAL: dict[str, Any] = {"lw": 1.0, "markersize": 3.5, "zorder": 3}

#: Least width of a figure, so that the legend above the axes fits.
WIDTH_MIN = 7.0

Summary = dict[str, Any]


def millisecond(_: Summary) -> float:
    """The usual unit of times: a millisecond, in seconds."""
    return 1e-3


def draw(
    axis: Axes,
    summaries: Iterable[Summary],
    across: Callable[[Summary], float],
    limited: bool = True,
    unit: Callable[[Summary], float] = millisecond,
) -> None:
    """Draws times by ``across``, on a logarithmic scale, as some systems are many times slower than others.

    ``limited``: also draws the physical limit. ``unit``: the unit of the times, in seconds.
    """
    summaries = sorted(summaries, key=across)
    if limited:
        axis.plot(
            [across(summary) for summary in summaries],
            [summary["limit_seconds"] / unit(summary) for summary in summaries],
            color="black",
            ls="--",
            lw=1.0,
            label="physical limit",
            zorder=2,
        )
    for name, look in LOOKS.items():
        measured = [summary for summary in summaries if name in summary["systems"]]
        if measured:
            times = [summary["systems"][name]["seconds"] / unit(summary) for summary in measured]
            axis.plot([across(summary) for summary in measured], times, label=name, **(USUAL | look))
    scale(axis)


def scale(axis: Axes) -> None:
    """Makes the axis logarithmic, with plain numbers, also between the powers of ten if there is room."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(_Plain())
    axis.yaxis.set_minor_formatter(_Plain())
    axis.grid(True, which="minor", axis="y", color=PALE, lw=0.2)


class _Plain(LogFormatter):
    """The usual labels without exponents."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Adds one legend above all axes, from the axis with the most entries."""
    handles, labels = max(
        (axis.get_legend_handles_labels() for axis in axes), key=lambda found: len(found[1])
    )
    figure.legend(handles, labels, ncols=5, fontsize=7.5, labelcolor=GREY, loc="outside upper left")
