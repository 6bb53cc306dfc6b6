"""Processor time and memory of a daemon in an idle cluster."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from lab.daemons import Daemon, on_loopback
from lab.processes import resident
from lab.report import RUNS_MIN, Report, median, progress

WATCH_SECONDS = 10.0

#: Time after the start in which nodes join and fault in memory ahead.
SETTLE_SECONDS = 5.0

#: A node is busy from 1 % of a core on. A single tick of gossip, or rounding, is less.
CPU_TARGET_PERCENT = 1.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, nargs="+", default=[2, 16, 64])
    options.add_argument("--runs", type=int, default=RUNS_MIN)
    options.add_argument("--store", default="64MiB")
    arguments = options.parse_args()
    report = Report(
        "idle",
        f"idle clusters of {' '.join(map(str, arguments.nodes))} nodes, watched for {WATCH_SECONDS:g} s",
        ("nodes", "CPU of a node", "of the busiest", "RSS private", "RSS arena", "must reach"),
    )
    for nodes in arguments.nodes:
        _report(report, nodes, _watched(nodes, arguments.store, arguments.runs))
    report.finish()


def _watched(nodes: int, store: str, runs: int) -> list[dict[str, list[Any]]]:
    """The processor time and memory of each node, for each run."""
    timed: list[dict[str, list[Any]]] = []
    with on_loopback(nodes, store) as daemons:
        time.sleep(SETTLE_SECONDS)
        for run in range(runs):
            progress(f"{nodes} nodes, run {run + 1} of {runs}: watching for {WATCH_SECONDS:g} s")
            before = [ticks(daemon) for daemon in daemons]
            time.sleep(WATCH_SECONDS)
            used = [ticks(daemon) - had for daemon, had in zip(daemons, before, strict=True)]
            timed.append({"ticks": used, "memory": [resident(daemon.process.pid) for daemon in daemons]})
    return timed


def ticks(daemon: Daemon) -> int:
    """User and system clock ticks that the daemon has used."""
    fields = Path("/proc", str(daemon.process.pid), "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _report(report: Report, nodes: int, timed: list[dict[str, list[Any]]]) -> None:
    def percent(used: float) -> float:
        return used / os.sysconf("SC_CLK_TCK") / WATCH_SECONDS * 100

    of_nodes = [percent(sum(run["ticks"][node] for run in timed) / len(timed)) for node in range(nodes)]
    typical, most = median(of_nodes), max(of_nodes)
    private, arena = (
        median(memory[kind] for run in timed for memory in run["memory"]) for kind in ("private", "arena")
    )
    report.add(
        (
            str(nodes),
            f"{typical:.2f} %",
            f"{most:.2f} %",
            f"{private / 2**20:.1f} MiB",
            f"{arena / 2**20:.1f} MiB",
            f"< {CPU_TARGET_PERCENT:g} % CPU",
        ),
        case=f"{nodes} idle nodes",
        runs=timed,
        summary={
            "cpu_percent": typical,
            "most_percent": most,
            "private_bytes": private,
            "arena_bytes": arena,
        },
    )


if __name__ == "__main__":
    main()
