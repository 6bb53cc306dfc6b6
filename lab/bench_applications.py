"""Applications on Ray, with Hoplite and without: the paper's Figures 9 to 11 and 13.

The programs are those of `examples.on_ray` and their twins on Ray alone: the driver, which is parameter
server, learner or frontend, on a host of its own, and a worker on each of the others. Both run on one Ray
cluster, in turns. Where a network would be trained, computing a gradient is a sleep: two cores cannot
compute and be the network of nine hosts. Policies and classifiers are small, and really compute. "x S/B" is
the time of a round in times that one link takes for the parameters, the policy or the batch.

Training in step is beside that of fixed groups, too, each rank of which has a host to itself: Gloo, by
``torch.distributed``, and OpenMPI with the best settings found. Ray's processes stand still meanwhile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lab import turns
from lab.applications import (
    APPLICATIONS,
    TWINS,
    Application,
    all_taking_part,
    busy_and_idle,
    cluster,
    groups,
    seconds_of,
    seconds_of_group,
)
from lab.hosts import Hosts
from lab.network import Network
from lab.plots import applications as figure
from lab.report import Report, median, progress
from lab.results import joined

WORKERS = 8
RUNS = 3
ROUNDS = 5

#: Of Ray alone, whose rounds take up to eight times as long.
RAY_RUNS = 1

#: Parameters of now and before, gradients on their way and partial sums, in one size.
ROOM_OBJECTS = 8

#: Does so many rounds that count, in one way, and gives the seconds of each.
Way = Callable[[int], list[float]]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=APPLICATIONS, default=list(APPLICATIONS))
    options.add_argument(
        "--workers", type=int, default=WORKERS, help="each on a host; the driver has one too"
    )
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of each run, after those to warm up")
    options.add_argument("--ray-runs", type=int, default=RAY_RUNS, help="of Ray alone, the first of all runs")
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
    with (
        turns.hosts_like_all(arguments.workers + 1, network) as hosts,
        cluster(hosts, store) as (head, processes),
    ):
        # Before any program: one that has just ended still has a link to itself for a moment.
        goodput = turns.goodput(hosts)
        for name in arguments.only:
            application = APPLICATIONS[name]
            ways: dict[str, Way] = {
                system: partial(_on_ray, application, system, hosts, head, arguments.workers)
                for system in TWINS
            }
            with groups(application.peers, arguments.workers, network, store) as running:
                for group in running:
                    ways[group.name] = partial(seconds_of_group, application, group, processes)
                _measure(name, arguments, ways, goodput, report)
    report.finish()
    figure.draw(joined("applications"), arguments.figures)


def _on_ray(
    application: Application, system: str, hosts: Hosts, head: str, workers: int, rounds: int
) -> list[float]:
    with all_taking_part(hosts, application.size):
        return seconds_of(application, system, hosts[0], head, workers, rounds)


def _measure(
    name: str, arguments: argparse.Namespace, ways: Mapping[str, Way], goodput: float, report: Report
) -> None:
    runs: dict[str, list[list[float]]] = {system: [] for system in ways}
    for run in range(-arguments.warm_up, arguments.runs):
        for system, seconds_of_rounds in ways.items():
            if system == "ray" and run >= arguments.ray_runs:
                continue
            before = busy_and_idle()
            seconds = seconds_of_rounds(arguments.rounds)
            busy, idle = (now - then for now, then in zip(busy_and_idle(), before, strict=True))
            told = " ".join(f"{taken:.2f}" for taken in seconds)
            progress(f"{name}, run {run}, {system}: {told} s; cores {busy / (busy + idle):.0%} busy")
            if run >= 0:
                runs[system].append(seconds)
    _add_rows(name, arguments, runs, APPLICATIONS[name].size / goodput, report)


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
    goal = f">= {target:g}" if target else "as fast as each" if application.peers else ""
    rows = [
        (
            application.title,
            str(workers),
            f"{arguments.rate:g} Mbit/s",
            system,
            f"{taken:.2f} s",
            f"{taken / limit:.2f}",
            f"{medians['ray'] / taken:.2f}",
            goal if system == turns.OURS else "",
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
