"""Times to detect a crash, a silent host and a paused process, and false alarms under load.

Each run strikes one node per case, and waits until all others have logged it as down. The times are from the
strike to these log lines, so the measurement sends no messages and polling costs nothing. Then the node is
brought back, and the next case begins when all nodes know each other again.

At last, spinning processes at normal priority keep all cores busy while every node lives. A node that is
declared dead then is a false alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.daemons import on_hosts, wait_until_joined
from lab.hosts import Hosts
from lab.node_host import NodeHost
from lab.report import RUNS_MIN, Report, median, progress

#: Longest time until all nodes notice a failure, and until all nodes know each other again.
NOTICE_SECONDS = 20.0
JOIN_SECONDS = 60.0
POLL_SECONDS = 0.02

#: Time before each failure, as a cluster is usually older than this when it fails.
SETTLE_SECONDS = 2.0

LOAD_SECONDS = 30.0

#: Spinning processes per core.
SPINNERS = 4

DOWN = re.compile(r"^(?P<when>\S+Z) .*member is down node=(?P<address>\S+)/\d+")


@dataclass(frozen=True)
class Case:
    """One way to lose a node, the way to bring it back, and the time within which it must be noticed."""

    name: str
    strike: Callable[[NodeHost], None]
    mend: Callable[[NodeHost, str], None]
    limit: float


def _terminate(node_host: NodeHost) -> None:
    node_host.daemon.process.terminate()


def _restart(node_host: NodeHost, seed: str) -> None:
    node_host.daemon.process.wait()
    node_host.restart_daemon(seed)


CASES = (
    Case("crash (SIGKILL)", NodeHost.kill_daemon, _restart, 0.05),
    Case("leaving (SIGTERM)", _terminate, _restart, 0.1),
    Case("silent host (link cut)", NodeHost.cut, lambda node_host, _: node_host.heal(), 1.0),
    Case("paused process (SIGSTOP)", NodeHost.pause, lambda node_host, _: node_host.resume(), 2.0),
)


class Watch:
    """The entries about lost members that daemons write to their logs from now on."""

    def __init__(self, node_hosts: Sequence[NodeHost]) -> None:
        self._logs = [
            (node_host, node_host.daemon.log, node_host.daemon.log.stat().st_size) for node_host in node_hosts
        ]

    def downs(self) -> list[tuple[str, str, float]]:
        """The reporting daemon, the lost member, and the time in seconds since the epoch."""
        found = []
        for node_host, log, start in self._logs:
            with log.open() as lines:
                lines.seek(start)
                for line in lines:
                    if match := DOWN.match(line):
                        when = datetime.fromisoformat(match["when"]).timestamp()
                        found.append((node_host.address, match["address"], when))
        return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hosts", type=int, default=8)
    options.add_argument("--runs", type=int, default=RUNS_MIN)
    options.add_argument("--store", default="256MiB")
    options.add_argument("--load-seconds", type=float, default=LOAD_SECONDS)
    options.add_argument("--spinners", type=int, default=SPINNERS, help="per core")
    arguments = options.parse_args()
    timed: dict[str, list[dict[str, Any]]] = {case.name: [] for case in CASES}
    busy: list[dict[str, Any]] = []
    with Hosts(arguments.hosts) as hosts, on_hosts(hosts, arguments.store) as daemons:
        node_hosts = [
            NodeHost(host, daemon, arguments.store) for host, daemon in zip(hosts, daemons, strict=True)
        ]
        time.sleep(SETTLE_SECONDS)
        for number in range(arguments.runs):
            for case in CASES:
                run = _play(case, node_hosts, 1 + number % (len(node_hosts) - 1))
                timed[case.name].append(run)
                progress(_told(case.name, run))
        load = _false_alarms(node_hosts, arguments.spinners, arguments.load_seconds)
        progress(f"all cores busy: {load['false_alarms']} false alarms")
        with _spinning(arguments.spinners):
            for number in range(arguments.runs):
                busy.append(_play(CASES[0], node_hosts, 1 + number % (len(node_hosts) - 1)))
                progress(_told("crash, all cores busy", busy[-1]))
        for node_host in node_hosts:
            node_host.close()
    _report(arguments, timed, busy, load)


def _play(case: Case, node_hosts: Sequence[NodeHost], victim: int) -> dict[str, Any]:
    """Makes one node fail. Returns the seconds until each other node noticed, and the false alarms."""
    struck, others = node_hosts[victim], [*node_hosts[:victim], *node_hosts[victim + 1 :]]
    watch = Watch(others)
    began = time.time()
    case.strike(struck)
    noticed: dict[str, float] = {}
    deadline = time.monotonic() + NOTICE_SECONDS
    while len(noticed) < len(others):
        if time.monotonic() > deadline:
            missing = [node_host.address for node_host in others if node_host.address not in noticed]
            raise RuntimeError(f"{case.name}: not noticed after {NOTICE_SECONDS} s by {', '.join(missing)}")
        time.sleep(POLL_SECONDS)
        for observer, dead, when in watch.downs():
            if dead == struck.address:
                noticed.setdefault(observer, when - began)
    case.mend(struck, others[0].address)
    healed = time.monotonic()
    wait_until_joined([node_host.daemon for node_host in node_hosts], JOIN_SECONDS)
    whole = time.monotonic() - healed
    time.sleep(SETTLE_SECONDS)
    alarms = sum(dead != struck.address for _, dead, _ in watch.downs())
    return {"noticed": sorted(noticed.values()), "whole_again": whole, "false_alarms": alarms}


@contextlib.contextmanager
def _spinning(per_core: int) -> Iterator[None]:
    count = per_core * (os.cpu_count() or 1)
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _false_alarms(node_hosts: Sequence[NodeHost], per_core: int, seconds: float) -> dict[str, Any]:
    watch = Watch(node_hosts)
    progress(f"all cores busy for {seconds:g} s")
    with _spinning(per_core):
        time.sleep(seconds)
    downs = watch.downs()
    return {"false_alarms": len(downs), "downs": downs, "node_seconds": seconds * len(node_hosts)}


def _told(name: str, run: dict[str, Any]) -> str:
    noticed, alarms = run["noticed"], run["false_alarms"]
    whole = f"whole again {_ms(run['whole_again'])}" + (f", {alarms} false alarms" if alarms else "")
    return f"{name}: first {_ms(noticed[0])}, all {_ms(noticed[-1])}, {whole}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _report(
    arguments: argparse.Namespace,
    timed: dict[str, list[dict[str, Any]]],
    busy: list[dict[str, Any]],
    load: dict[str, Any],
) -> None:
    report = Report(
        "detection",
        f"{arguments.hosts} nodes, one of them lost; medians of {arguments.runs}, from loss to log line",
        ("case", "first notices", "all have", "worst", "whole again", "false alarms", "must reach"),
    )
    rows = [(case.name, timed[case.name], f"all < {_ms(case.limit)}") for case in CASES]
    for name, runs, target in [*rows, ("crash, all cores busy", busy, "-")]:
        summary = {
            "first_seconds": median(run["noticed"][0] for run in runs),
            "all_seconds": median(run["noticed"][-1] for run in runs),
            "worst_seconds": max(run["noticed"][-1] for run in runs),
            "whole_again_seconds": median(run["whole_again"] for run in runs),
            "false_alarms": sum(run["false_alarms"] for run in runs),
        }
        times = [_ms(summary[f"{key}_seconds"]) for key in ("first", "all", "worst", "whole_again")]
        report.add(
            (name, *times, str(summary["false_alarms"]), target), case=name, runs=runs, summary=summary
        )
    title = f"nobody, {arguments.spinners} spinners per core for {arguments.load_seconds:g} s"
    alarms = str(load["false_alarms"])
    report.add((title, "-", "-", "-", "-", alarms, "no false alarm"), case=title, runs=load, summary=load)
    report.finish()


if __name__ == "__main__":
    main()
