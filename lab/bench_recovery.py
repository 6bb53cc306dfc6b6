"""The cost of a relay's death half-way, for a broadcast and a reduce over hosts with limited links.

In each round every case runs once: without a failure, and with one relay killed, paused or cut off when half
of its bytes have come. During the run, the kernel's connections show which host is a relay. The time is from
the common start until the last survivor has the whole content, which is checked.

A case is allowed the time without a failure, plus the time within which such a failure must be detected,
plus:

- 5 % in a broadcast;
- in a reduce, the work that the ancestors of the failed slot had done already and must repeat.

If a lost source is put again, the case is instead allowed one run without a failure from that put on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lab.daemons import on_hosts
from lab.hosts import Hosts
from lab.node_host import ClientHost
from lab.recovery import figure
from lab.recovery.play import CASES, Case, Stage
from lab.report import RUNS_MIN, Report, median, progress, size_text
from lab.results import RESULTS, joined, newest

#: Seconds by which a broadcast may take longer than without a failure, besides the detection time.
SLACK = 0.05


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hosts", type=int, default=8)
    options.add_argument("--rate", type=float, default=500.0, help="Mbit/s of each link, each way")
    options.add_argument("--size", type=int, default=256, help="MiB of an object")
    options.add_argument("--runs", type=int, default=RUNS_MIN)
    options.add_argument("--store", default="1536MiB", help="of each node: several copies of an object")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figures")
    arguments = options.parse_args()
    size = arguments.size << 20
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    wanted = [case for name, case in CASES.items() if name in _with_baselines(arguments.cases)]
    with (
        Hosts(arguments.hosts, rate_mbit=arguments.rate) as hosts,
        on_hosts(hosts, arguments.store) as daemons,
    ):
        node_hosts = [
            ClientHost(host, daemon, arguments.store) for host, daemon in zip(hosts, daemons, strict=True)
        ]
        stage = Stage(hosts, node_hosts, size)
        stage.warm(node_hosts)
        for number in range(arguments.runs):
            for case in wanted:
                run = stage.play(case, number)
                runs[case.name].append(run)
                progress(_told(case, run))
        for node_host in node_hosts:
            node_host.close()
    report = Report(
        f"recovery-{arguments.hosts}x{arguments.rate:g}",
        f"{size_text(size)} over {arguments.hosts} hosts, {arguments.rate:g} Mbit/s each way; "
        f"medians of {arguments.runs}",
        (
            "case",
            "median",
            "spread",
            "no failure",
            "stood still",
            "redone",
            "allowed",
            "ratio",
            "to no failure",
        ),
    )
    for case in wanted:
        add_row(report, case, runs)
    report.finish()
    figure.draw(newest(joined("recovery")).document, arguments.figures)


def _compact(name: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, with samples of the links only where the figure shows them."""
    shown = figure.median_run(runs) if name in figure.PROGRESS else None
    return [{key: value for key, value in run.items() if key != "progress" or run is shown} for run in runs]


def _with_baselines(names: list[str]) -> set[str]:
    return {*names, *(CASES[name].baseline for name in names)}


def add_row(report: Report, case: Case, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Adds a row of the table: the time of the case and its limit."""
    own = runs[case.name]
    seconds = median(run["seconds"] for run in own)
    without = median(run["seconds"] for run in runs[case.baseline])
    spread = f"{min(run['seconds'] for run in own):.2f}-{max(run['seconds'] for run in own):.2f} s"
    summary: dict[str, Any] = {"seconds": seconds, "seconds_without_failure": without}
    cells = ["-", "-", "-", "-"]
    if case.fault is not None:
        allowed = median(_allowed(case, run, without) for run in own)
        still = median(run["standstill_seconds"] for run in own)
        redone = median(run["redone_share"] for run in own)
        summary |= {
            "allowed_seconds": allowed,
            "detection_promised_seconds": case.fault.detection_seconds,
            "standstill_seconds": still,
            "redone_share": redone,
            "ratio_to_allowed": seconds / allowed,
        }
        cells = [
            f"{still * 1e3:.0f} ms",
            f"{redone:.0%}" if case.collective == "reduce" else "-",
            f"{allowed:.2f} s",
            f"{seconds / allowed:.3f}",
        ]
    report.add(
        (case.name, f"{seconds:.2f} s", spread, f"{without:.2f} s", *cells, f"{seconds / without:.3f}"),
        case=case.name,
        runs=_compact(case.name, own),
        summary=summary,
    )


def _allowed(case: Case, run: dict[str, Any], without: float) -> float:
    """The longest allowed time of the run, from the time without a failure."""
    assert case.fault is not None
    if case.put_again:
        return float(run["put_again_seconds"]) + without
    if case.collective == "broadcast":
        return without * (1 + SLACK) + case.fault.detection_seconds
    return without * (1 + float(run["redone_share"])) + case.fault.detection_seconds


def _told(case: Case, run: dict[str, Any]) -> str:
    text = f"{case.name}: {run['seconds']:.3f} s"
    if "victim" in run:
        text += (
            f", host {run['victim']} struck at {run['struck_seconds']:.3f} s, "
            f"those behind stood still {run['standstill_seconds'] * 1e3:.0f} ms"
        )
    return text


if __name__ == "__main__":
    main()
