"""Applications on Ray, with Hoplite and without: the paper's Figures 9 to 11.

The programs are those of `examples.on_ray` and their twins on Ray alone: the driver, which is parameter
server, learner or frontend, on a host of its own, and a worker on each of the others. Both run on one Ray
cluster, in turns. Where a network would be trained, computing a gradient is a sleep: two cores cannot
compute and be the network of nine hosts. Policies and classifiers are small, and really compute. "x S/B" is
the time of a round in times that one link takes for the parameters, the policy or the batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from lab import turns
from lab.applications import (
    APPLICATIONS,
    TWINS,
    all_taking_part,
    busy_and_idle,
    cluster,
    seconds_of,
)
from lab.hosts import Hosts
from lab.network import Network
from lab.plots import applications as figure
from lab.report import Report, median, progress
from lab.results import joined

WORKERS = 8
RUNS = 3
ROUNDS = 5

#: Parameters of now and before, gradients on their way and partial sums, in one size.
ROOM_OBJECTS = 8


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=APPLICATIONS, default=list(APPLICATIONS))
    options.add_argument(
        "--workers", type=int, default=WORKERS, help="each on a host; the driver has one too"
    )
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of each run, after those to warm up")
    turns.add_run_options(options)
    options.set_defaults(runs=RUNS, warm_up=0)
    arguments = options.parse_args()
    network = Network(arguments.rate)
    report = Report(
        "applications",
        f"{arguments.workers} workers and a driver on a host each, {network} each way",
        ("application", "workers", "link", "system", "a round", "x S/B", "x ray", "must reach"),
    )
    store = turns.store_for(ROOM_OBJECTS * max(APPLICATIONS[name].size for name in arguments.only))
    with turns.hosts_like_all(arguments.workers + 1, network) as hosts, cluster(hosts, store) as head:
        # Before any program: one that has just ended still has a link to itself for a moment.
        goodput = turns.goodput(hosts)
        for name in arguments.only:
            _measure(name, arguments, hosts, head, goodput, report)
    report.finish()
    figure.draw(joined("applications"), arguments.figures)


def _measure(
    name: str, arguments: argparse.Namespace, hosts: Hosts, head: str, goodput: float, report: Report
) -> None:
    application = APPLICATIONS[name]
    runs: dict[str, list[list[float]]] = {system: [] for system in TWINS}
    for run in range(-arguments.warm_up, arguments.runs):
        for system in TWINS:
            before = busy_and_idle()
            with all_taking_part(hosts, application.size):
                seconds = seconds_of(application, system, hosts[0], head, arguments.workers, arguments.rounds)
            busy, idle = (now - then for now, then in zip(busy_and_idle(), before, strict=True))
            told = " ".join(f"{taken:.2f}" for taken in seconds)
            progress(f"{name}, run {run}, {system}: {told} s; cores {busy / (busy + idle):.0%} busy")
            if run >= 0:
                runs[system].append(seconds)
    _add_rows(name, arguments, runs, application.size / goodput, report)


def _add_rows(
    name: str,
    arguments: argparse.Namespace,
    runs: Mapping[str, Sequence[Sequence[float]]],
    limit: float,
    report: Report,
) -> None:
    application, workers = APPLICATIONS[name], arguments.workers
    # A run's mean: rounds alternate between two halves of the workers, and prepare each other.
    medians = {system: median(sum(run) / len(run) for run in of) for system, of in runs.items()}
    target = application.targets.get(workers)
    rows = [
        (
            application.title,
            str(workers),
            f"{arguments.rate:g} Mbit/s",
            system,
            f"{taken:.2f} s",
            f"{taken / limit:.2f}",
            f"{medians['ray'] / taken:.2f}",
            f">= {target:g}" if target and system == turns.OURS else "",
        )
        for system, taken in medians.items()
    ]
    summary = {
        "name": name,
        "title": application.title,
        "workers": workers,
        "rate_mbit": arguments.rate,
        "size": application.size,
        "limit_seconds": limit,
        "target": target,
        "seconds": medians,
    }
    report.add(*rows, case=f"{name} x {workers} x {arguments.rate:g}", runs=runs, summary=summary)


if __name__ == "__main__":
    main()
