"""The figures of the recovery benchmark, drawn from its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lab.figures import BLUE, GREEN, GREY, ORANGE, PALE, RED, caption, save, subplots

PROGRESS = ("broadcast, relay killed", "reduce, relay killed")
MIB = 1 << 20

#: The axis reaches to the largest of these values. Disturbed runs may be outside.
SHOWN = ("seconds", "allowed_seconds")


def draw(document: dict[str, Any], folder: Path) -> list[str]:
    """Draws the figures and returns their names."""
    cases = {case["case"]: case for case in document["cases"]}
    _draw_costs(document, cases, folder)
    if not all(name in cases for name in PROGRESS):
        return ["recovery-cost"]
    _draw_progress(document, cases, folder)
    return ["recovery-cost", "recovery-progress"]


def _draw_costs(document: dict[str, Any], cases: dict[str, Any], folder: Path) -> None:
    figure, (axis,) = subplots(1, 1, (7.0, 0.42 * len(cases) + 1.2))
    for row, case in enumerate(cases.values()):
        _cost(axis, row, case)
    axis.set_yticks(range(len(cases)), list(cases))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("seconds until the last survivor has the whole content")
    axis.set_title("Recovery from the failure of a relay half-way")
    for colour, label in ((BLUE, "without a failure"), (GREEN, "done again"), (ORANGE, "all else")):
        axis.barh(0, 0, color=colour, label=label)
    axis.plot([], [], "|", color=RED, ms=12, mew=2, label="allowed")
    axis.plot([], [], ".", color=GREY, ms=3, label="single runs")
    figure.legend(loc="outside upper right", ncols=5, fontsize=7.5)
    shown = 1.2 * max(max(case["summary"].get(key, 0.0) for key in SHOWN) for case in cases.values())
    hidden = [run["seconds"] for case in cases.values() for run in case["runs"] if run["seconds"] > shown]
    axis.set_xlim(0, shown)
    beyond = f" {len(hidden)} single runs lie beyond the edge, up to {max(hidden):.0f} s." if hidden else ""
    caption(figure, f"{document['title']}.{beyond}\nAllowed: see docs/fault-tolerance.md.")
    save(figure, folder, "recovery-cost")


def _cost(axis: Axes, row: int, case: dict[str, Any]) -> None:
    """Draws a bar of three parts: the time without a failure, the repeated work, and the rest."""
    summary = case["summary"]
    seconds, without = summary["seconds"], summary["seconds_without_failure"]
    again = without * summary.get("redone_share", 0.0) if case["case"].startswith("reduce") else 0.0
    left = 0.0
    for colour, width in ((BLUE, without), (GREEN, again), (ORANGE, seconds)):
        # The parts are medians of different cases, so they may not add up exactly.
        width = max(0.0, min(width, seconds - left))
        axis.barh(row, width, left=left, height=0.6, color=colour)
        left += width
    axis.plot([run["seconds"] for run in case["runs"]], [row] * len(case["runs"]), ".", color=GREY, ms=3)
    if "allowed_seconds" in summary:
        axis.plot(summary["allowed_seconds"], row, "|", color=RED, ms=14, mew=2)
    axis.text(0.05, row, f"{seconds:.2f} s", va="center", color="white", fontsize=8)


def _draw_progress(document: dict[str, Any], cases: dict[str, Any], folder: Path) -> None:
    figure, axes = subplots(1, 2, (7.5, 3.4))
    for axis, name in zip(axes, PROGRESS, strict=True):
        _progress(axis, name, median_run(cases[name]["runs"]))
    axes[0].set_ylabel("MiB received")
    caption(figure, f"{document['title']}. Bytes that came in over each host's link, the median run.")
    save(figure, folder, "recovery-progress")


def median_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median time."""
    return sorted(runs, key=lambda run: float(run["seconds"]))[len(runs) // 2]


def _progress(axis: Axes, name: str, run: dict[str, Any]) -> None:
    tree = {tuple(edge) for edge in run["tree"]}
    victim, struck = run["victim"], run["struck_seconds"]
    times = [sample[0] for sample in run["progress"]]
    before = {sender for sender, receiver in tree if receiver == victim}
    after = {receiver for sender, receiver in tree if sender == victim}
    hosts = {host for edge in tree for host in edge}
    for host in range(len(run["progress"][0]) - 1):
        received = [sample[1 + host] / MIB for sample in run["progress"]]
        if received[-1] < 1:
            continue
        colour, width, label = PALE, 1.0, None
        if host == victim:
            colour, width, label = RED, 1.8, "the relay that is killed"
        elif host in after:
            colour, width, label = BLUE, 1.8, "the host behind it"
        elif host in before:
            colour, width, label = GREEN, 1.8, "the host before it"
        elif host not in hosts:
            colour, width, label = ORANGE, 1.8, "the host that takes its seat"
        axis.plot(times, received, color=colour, lw=width, label=label)
    axis.plot([], [], color=PALE, label="other hosts")
    axis.axvline(struck, color=GREY, ls=":", lw=1)
    axis.set_title(name)
    axis.set_xlabel("seconds")
    axis.legend(fontsize=7)
