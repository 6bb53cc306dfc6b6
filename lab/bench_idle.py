"""An idle cluster: processor time and memory of a daemon while nothing happens."""

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

#: After the start, joining and faulting in ahead are done within this time.
SETTLE_SECONDS = 5.0

#: One tick of gossip or rounding is not "busy": 1 % of a core is.
CPU_TARGET_PERCENT = 1.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, default=2)
    options.add_argument("--runs", type=int, default=RUNS_MIN)
    options.add_argument("--store", default="1GiB")
    arguments = options.parse_args()
    timed: list[dict[str, list[Any]]] = []
    with on_loopback(arguments.nodes, arguments.store) as daemons:
        time.sleep(SETTLE_SECONDS)
        for run in range(arguments.runs):
            progress(f"run {run + 1} of {arguments.runs}: watching for {WATCH_SECONDS:g} s")
            before = [ticks(daemon) for daemon in daemons]
            time.sleep(WATCH_SECONDS)
            used = [ticks(daemon) - had for daemon, had in zip(daemons, before, strict=True)]
            timed.append({"ticks": used, "memory": [resident(daemon.process.pid) for daemon in daemons]})
    _report(arguments.nodes, timed)


def ticks(daemon: Daemon) -> int:
    """User and system clock ticks the daemon has used."""
    fields = Path("/proc", str(daemon.process.pid), "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _report(nodes: int, timed: list[dict[str, list[Any]]]) -> None:
    report = Report(
        "idle",
        f"{nodes} idle nodes, watched for {WATCH_SECONDS:g} s",
        ("node", "ticks", "CPU", "RSS private", "RSS arena", "must reach"),
    )
    for node in range(nodes):
        used = median(run["ticks"][node] for run in timed)
        percent = used / os.sysconf("SC_CLK_TCK") / WATCH_SECONDS * 100
        private = median(run["memory"][node]["private"] for run in timed)
        arena = median(run["memory"][node]["arena"] for run in timed)
        report.add(
            (
                str(node),
                f"{used:g}",
                f"{percent:.2f} %",
                f"{private / 2**20:.1f} MiB",
                f"{arena / 2**20:.1f} MiB",
                f"< {CPU_TARGET_PERCENT:g} % CPU",
            ),
            case=f"idle node {node}",
            runs=timed,
            summary={"cpu_percent": percent, "private_bytes": private, "arena_bytes": arena},
        )
    report.finish()


if __name__ == "__main__":
    main()
