"""Latency of every step while a participant fails and comes back: the paper's Figure 12.

There are two applications: serving by an ensemble of eight models, and asynchronous SGD with eight workers.
Each participant has a host with a limited link of its own. In one step, a participant that is relaying at
that moment is killed, daemon and client. Some steps later, a new daemon at the same address and a new client
take its place. The same run without a failure is drawn beside it. A short sleep stands for computing, because
two cores can either compute or be a network of nine hosts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab.daemons import on_hosts
from lab.failure import ensemble, figure, sgd
from lab.failure.steps import Application, Plan, play
from lab.hosts import Hosts
from lab.report import Report, median, percentile, progress
from lab.results import RESULTS, joined, newest

APPLICATIONS: dict[str, Callable[[str, int], Application]] = {
    "ensemble": ensemble.Frontend,
    "sgd": sgd.Server,
}

#: Steps before the first one that counts, some ten seconds of each application. In this time the nodes fault
#: in their arenas, which takes as much processor time as the steps.
WARM_STEPS = {"ensemble": 30, "sgd": 8}

#: Runs of each application. The figure shows the medians and the single runs.
RUNS = 3


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--participants", type=int, default=8, help="besides the frontend or server")
    options.add_argument("--rate", type=float, default=500.0, help="Mbit/s of each link, each way")
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--fail", type=int, default=20, help="the step in which a participant is killed")
    options.add_argument("--rejoin", type=int, default=40, help="the step before which it comes back")
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--store", default="1GiB")
    options.add_argument("--only", choices=APPLICATIONS)
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figure")
    arguments = options.parse_args()
    names = [arguments.only] if arguments.only else list(APPLICATIONS)
    report = Report(
        f"failure-{arguments.participants}x{arguments.rate:g}",
        f"{arguments.participants} participants, {arguments.rate:g} Mbit/s each way, {arguments.runs} runs: "
        f"latency of a step",
        ("application", "run", "before", "step of the failure", "one fewer", "after rejoining", "slowest"),
    )
    for name in names:
        runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for number in range(arguments.runs):
            for fails in runs:
                plan = Plan(arguments.steps, WARM_STEPS[name], arguments.fail, arguments.rejoin, fails)
                run = _play(name, arguments, plan)
                runs[fails].append(run)
                progress(f"{name}, run {number}, {'a failure' if fails else 'no failure'}: {_told(run)}")
        for fails in runs:
            _add_row(report, name, fails, runs[fails], arguments)
    report.finish()
    figure.draw(newest(joined("failure")).document, arguments.figures)


def _play(name: str, arguments: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """A run on a cluster of its own, so that earlier runs do not affect it."""
    with (
        Hosts(arguments.participants + 1, rate_mbit=arguments.rate) as hosts,
        on_hosts(hosts, arguments.store) as daemons,
    ):
        application = APPLICATIONS[name](daemons[0].socket, arguments.participants)
        try:
            return play(application, hosts, daemons, arguments.store, plan)
        finally:
            application.close()


def _add_row(
    report: Report, name: str, fails: bool, runs: Sequence[dict[str, Any]], arguments: argparse.Namespace
) -> None:
    fail, rejoin = arguments.fail, arguments.rejoin
    stretches = pairwise((0, fail, fail + 1, rejoin, arguments.steps))
    latencies = [
        median(seconds for run in runs for seconds in run["latencies"][begin:end]) for begin, end in stretches
    ]
    slowest = max(seconds for run in runs for seconds in run["latencies"])
    report.add(
        (
            name,
            "a failure" if fails else "no failure",
            *(f"{seconds * 1e3:.0f} ms" for seconds in latencies),
            f"{slowest * 1e3:.0f} ms",
        ),
        case=f"{name}, {'a failure' if fails else 'no failure'}",
        runs=runs,
        summary={
            "fails": fails,
            "fail_step": fail,
            "rejoin_step": rejoin,
            "seconds_before": latencies[0],
            "seconds_of_failing_step": latencies[1],
            "seconds_one_fewer": latencies[2],
            "seconds_after": latencies[3],
            "seconds_slowest": slowest,
        },
    )


def _told(run: dict[str, Any]) -> str:
    latencies = run["latencies"]
    text = f"median {median(latencies) * 1e3:.0f} ms, p95 {percentile(latencies, 95) * 1e3:.0f} ms"
    if "victim" in run:
        text += f", host {run['victim']} killed, slowest {max(latencies) * 1e3:.0f} ms"
    return text


if __name__ == "__main__":
    main()
