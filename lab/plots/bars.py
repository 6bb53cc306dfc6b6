"""A bar for each system, in its colour."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from lab.figures import GREY
from lab.plots.lines import LOOKS, scale

#: From this ratio of the longest to the shortest bar on, the scale is logarithmic.
LOGARITHMIC_FROM = 10


def draw(axis: Axes, values: Mapping[str, float], limit: float | None = None) -> None:
    """Draws the value of each system, and a dashed line at the physical limit."""
    known = [name for name in LOOKS if name in values]
    names = [*known, *(name for name in values if name not in known)]
    heights = [values[name] for name in names]
    bars = axis.bar(names, heights, color=[LOOKS.get(name, {"color": GREY})["color"] for name in names])
    axis.bar_label(bars, [_number(height) for height in heights], fontsize=7)
    if limit is not None:
        axis.axhline(limit, color="black", ls="--", lw=1.0)
    if max(heights) > LOGARITHMIC_FROM * min(heights):
        scale(axis)
    axis.tick_params("x", rotation=60)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
