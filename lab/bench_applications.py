"""Applications on Ray, with Hoplite and without: the paper's Figures 9 to 11 and 13.

The programs are those of `examples.on_ray` and their twins on Ray alone. The driver has a host of its own; it
is parameter server, learner or frontend. Each worker has a host of its own, too. Both systems run on one Ray
cluster. Ray alone runs last, after Hoplite's nodes have ended, and by default only once: its rounds take many
times as long.

Where a network would be trained, a sleep stands for computing a gradient: two cores cannot compute and be the
network of nine hosts. Policies and classifiers are small, and really compute. "x S/B" is the time of a round,
divided by the time that one link takes for the parameters, the policy or the batch.

Synchronous training also runs on fixed groups, with a host for each rank: Gloo, by ``torch.distributed``, and
OpenMPI with the best settings found. Their runs alternate with Hoplite's, and Ray's processes are stopped
while a group runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial

from lab import interleave
from lab.applications import (
    APPLICATIONS,
    ProgramFailed,
    busy_and_idle,
    cluster,
    groups,
    seconds_of_group,
)
from lab.network import Network
from lab.plots import applications as figure
from lab.report import Report, median, progress
from lab.results import joined

WORKERS = 8
RUNS = 3
ROUNDS = 5

#: Runs of Ray alone, whose rounds take up to eight times as long.
RAY_RUNS = 1

#: Objects of one size that a store has room for: current and earlier parameters, gradients under way and
#: partial sums. More do not fit, as the stores of sixteen hosts and a driver share 24 GiB with Ray's
#: processes.
ROOM_OBJECTS = 8

#: Runs so many rounds that count, in one way, and returns the seconds of each.
Way = Callable[[int], list[float]]

#: The seconds of each round of each run, by system.
Runs = dict[str, list[list[float]]]

#: Ray without Hoplite.
ALONE = "ray"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", nargs="+", choices=APPLICATIONS, default=list(APPLICATIONS))
    options.add_argument(
        "--workers", type=int, default=WORKERS, help="each on a host; the driver has one too"
    )
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of each run, after those to warm up")
    options.add_argument(
        "--ray-runs", type=int, default=RAY_RUNS, help="of Ray alone, after all others; may be none"
    )
    interleave.add_run_options(options)
    options.set_defaults(runs=RUNS, warm_up=0)
    arguments = options.parse_args()
    network = Network(arguments.rate)
    report = Report(
        "applications",
        f"{arguments.workers} workers and a driver on a host each, {network} each way",
        ("application", "workers", "link", "system", "a round", "x S/B", "x ray", "must reach"),
    )
    store = str(ROOM_OBJECTS * max(APPLICATIONS[name].size for name in arguments.only))
    with interleave.hosts_like_all(arguments.workers + 1, network) as hosts, cluster(hosts, store) as on_ray:
        # Measured before any program runs, as a program that has just ended may still use a link for a
        # moment.
        goodput = interleave.goodput(hosts)
        runs: dict[str, Runs] = {}
        for name in arguments.only:
            application = APPLICATIONS[name]
            ours = partial(on_ray.seconds_of, application, interleave.OURS, arguments.workers)
            with groups(application.peers, arguments.workers, network, store) as running:
                theirs = {
                    group.name: partial(seconds_of_group, application, group, on_ray.processes)
                    for group in running
                }
                runs[name] = _measured(name, {interleave.OURS: ours, **theirs}, arguments.runs, arguments)
        for name in arguments.only:
            alone = partial(on_ray.seconds_of, APPLICATIONS[name], ALONE, arguments.workers)
            try:
                runs[name] |= _measured(name, {ALONE: alone}, arguments.ray_runs, arguments)
            except ProgramFailed as failed:
                progress(f"{name}: Ray alone is left out: {failed}")
            _add_rows(name, arguments, runs[name], APPLICATIONS[name].size / goodput, report)
    report.finish()
    figure.draw(joined("applications"), arguments.figures)


def _measured(name: str, ways: Mapping[str, Way], count: int, arguments: argparse.Namespace) -> Runs:
    """Does ``count`` runs of each way, in turns."""
    runs: Runs = {system: [] for system in ways}
    for run in range(-arguments.warm_up, count):
        for system, seconds_of_rounds in ways.items():
            before = busy_and_idle()
            seconds = seconds_of_rounds(arguments.rounds)
            busy, idle = (now - then for now, then in zip(busy_and_idle(), before, strict=True))
            told = " ".join(f"{taken:.2f}" for taken in seconds)
            progress(f"{name}, run {run}, {system}: {told} s; cores {busy / (busy + idle):.0%} busy")
            if run >= 0:
                runs[system].append(seconds)
    return runs


def _add_rows(
    name: str,
    arguments: argparse.Namespace,
    runs: Runs,
    limit: float,
    report: Report,
) -> None:
    application, workers = APPLICATIONS[name], arguments.workers
    # The mean of a run, as rounds alternate between two halves of the workers and prepare each other.
    medians = {system: median(sum(run) / len(run) for run in of) for system, of in runs.items() if of}
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
            f"{medians[ALONE] / taken:.2f}" if ALONE in medians else "",
            goal if system == interleave.OURS else "",
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
