"""Collectives by hosts: the paper's Figure 7, and its Figure 14 for small objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from lab.figures import caption, save, subplots
from lab.plots import lines
from lab.rates import TBF_BURST
from lab.report import size_text
from lab.results import Case
from lab.systems import CASES

#: Objects from this size on have a figure of their own.
LARGE_BYTES_MIN = 1 << 20

#: Least range of an axis, as multiples of the limit.
TIMES_SEEN = (0.95, 1.2)


def draw(cases: Sequence[Case], folder: Path) -> list[str]:
    """Draws all collectives. Returns the names of the figures."""
    large = [case for case in cases if case.summary["size"] >= LARGE_BYTES_MIN]
    small = [case for case in cases if case.summary["size"] < LARGE_BYTES_MIN]
    drawn = []
    for name, part in (("collectives", large), ("collectives-small", small)):
        if part:
            _draw(_over_hosts(part), folder, name)
            drawn.append(name)
    return drawn


def _over_hosts(cases: Sequence[Case]) -> Sequence[Case]:
    """The cases of sizes that were measured over several numbers of hosts, or all cases if there are none."""
    hosts: defaultdict[int, set[int]] = defaultdict(set)
    for case in cases:
        hosts[case.summary["size"]].add(case.summary["hosts"])
    return [case for case in cases if len(hosts[case.summary["size"]]) > 1] or cases


def _draw(cases: Sequence[Case], folder: Path, name: str) -> None:
    found = [case.summary for case in cases]
    sizes = sorted({summary["size"] for summary in found})
    rows = [case for case in CASES if any(summary["case"] == case for summary in found)]
    # Links of all rates are in one figure, so it shows multiples of the limit. Small objects are faster than
    # the limit, as a link passes some bytes at once.
    is_limited = sizes[0] >= LARGE_BYTES_MIN
    figure, axes = subplots(
        len(rows), len(sizes), (max(2.6 * len(sizes), lines.WIDTH_MIN), 1.9 * len(rows) + 0.9)
    )
    places = [(case, size) for case in rows for size in sizes]
    for axis, (case, size) in zip(axes, places, strict=True):
        here = [summary for summary in found if (summary["case"], summary["size"]) == (case, size)]
        unit = _limit if is_limited else lines.millisecond
        lines.draw(axis, here, lambda summary: float(summary["hosts"]), is_limited, unit)
        if is_limited:
            # If all values are at the limit, tiny differences must not look large.
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, TIMES_SEEN[0]), max(high, TIMES_SEEN[1]))
        axis.set_title(f"{case} {size_text(size)}")
        axis.set_xticks(sorted({summary["hosts"] for summary in found}))
    for axis in axes[-len(sizes) :]:
        axis.set_xlabel("hosts")
    for axis in axes[:: len(sizes)]:
        axis.set_ylabel("x limit" if is_limited else "ms")
    lines.legend(figure, axes)
    runs = " or ".join(str(count) for count in sorted({len(case.runs) for case in cases}))
    text = f"{_links(found)} each way;\nmedians of {runs} runs; the systems took turns."
    if not is_limited:
        text += (
            f"\nA link lets {size_text(TBF_BURST)} through at once: S/B is no limit for objects this small."
        )
    caption(figure, text)
    save(figure, folder, name)


def _limit(summary: lines.Summary) -> float:
    return float(summary["limit_seconds"])


def _links(found: Sequence[lines.Summary]) -> str:
    """The numbers of hosts and the rates of their links, as text."""
    rates: defaultdict[int, set[float]] = defaultdict(set)
    for summary in found:
        rates[summary["hosts"]].add(summary["rate_mbit"])
    return ", ".join(
        f"{hosts} hosts x {' or '.join(f'{rate:g}' for rate in sorted(rates[hosts]))} Mbit/s"
        for hosts in sorted(rates)
    )
