"""Tasks on Ray that end one after the other, whose results Hoplite sums up as they come.

The driver and each task have a host of their own. The driver asks for the sum before the first task has
ended. The time is from then until the driver has the sum. The limit is the last task's end + S/B.
"""

from __future__ import annotations

import argparse
import sys
from functools import reduce

from lab import interleave
from lab.applications import cluster
from lab.hosts import Hosts
from lab.network import Network
from lab.report import Report, median, progress, size_of, size_text
from lab.systems import WrongContent, peers, ray
from lab.worker import Process, checksum, pattern

TASKS = 8
SIZE = 32 << 20
INTERVALS = (0.0, 0.1, 0.2, 0.4)

#: Target as a multiple of the limit.
TARGET = 1.05

#: Objects that a store has room for: sources, partial sums and results of this run and of the one before.
ROOM_OBJECTS = 8


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tasks", type=int, default=TASKS, help="each on a host; the driver has one too")
    options.add_argument("--size", type=size_of, default=SIZE, help="as 1MiB")
    options.add_argument("--intervals", type=float, nargs="+", default=INTERVALS, help="seconds")
    interleave.add_run_options(options)
    arguments = options.parse_args()
    network = Network(arguments.rate)
    report = Report(
        "ray_arrivals",
        f"Sums of {arguments.tasks} tasks' results that end one after the other, on Ray with Hoplite, "
        f"{size_text(arguments.size)}, {network} each way",
        ("interval", "last end", "the sum", "after the last end", "S/B", "x limit", "spread", "must reach"),
    )
    store = interleave.store_for(ROOM_OBJECTS * arguments.size)
    with interleave.hosts_like_all(arguments.tasks + 1, network) as hosts, cluster(hosts, store) as on_ray:
        on_ray.use_hoplite()
        command = [sys.executable, "-m", "lab.ray_arrivals", on_ray.head]
        driver = Process(command, hosts[0], peers.START_SECONDS, ray.SETTINGS)
        try:
            # A first run, in which workers start and fault in their memory.
            _run(driver, arguments.tasks, arguments.size, None)
            for interval in arguments.intervals:
                _measure(interval, arguments, hosts, driver, report)
        finally:
            driver.close()
    report.finish()


def _measure(
    interval: float, arguments: argparse.Namespace, hosts: Hosts, driver: Process, report: Report
) -> None:
    last = (arguments.tasks - 1) * interval
    taken, least = [], []
    for number in range(-arguments.warm_up, arguments.runs):
        seconds = _run(driver, arguments.tasks, arguments.size, interval)
        if number < 0:
            continue
        least.append(arguments.size / interleave.goodput(hosts))
        taken.append(seconds)
        progress(f"{interval:g} s apart: {seconds - last:.3f} s after the last end; S/B {least[-1]:.3f} s")
    # The smallest limit counts, so that a disturbed measurement of the limit cannot improve the ratio.
    limit = last + min(least)
    seconds = median(taken)
    report.add(
        (
            f"{interval * 1e3:g} ms",
            f"{last:.3f} s",
            f"{seconds:.3f} s",
            f"{seconds - last:.3f} s",
            f"{min(least):.3f} s",
            f"{seconds / limit:.3f}",
            f"{min(taken) / limit:.3f}-{max(taken) / limit:.3f}",
            f"<= {TARGET} x limit",
        ),
        case=f"{arguments.tasks} tasks x {size_text(arguments.size)}, {interval * 1e3:g} ms apart"
        f" x {hosts.network}",
        runs={"seconds": taken, "least_seconds": least},
        summary={
            "interval_seconds": interval,
            "last_end_seconds": last,
            "seconds": seconds,
            "limit_seconds": limit,
            "ratio": seconds / limit,
        },
    )


def _run(driver: Process, tasks: int, size: int, interval: float | None) -> float:
    hosts = list(range(1, tasks + 1))
    answer = driver.ask("add_up", hosts=hosts, size=size, interval=interval)
    if answer["checksum"] != _expected(tasks, size):
        raise WrongContent(f"the sum of {tasks} arrays of {size} bytes has other bytes than must be")
    return float(answer["seconds"])


_sums: dict[tuple[int, int], int] = {}


def _expected(tasks: int, size: int) -> int:
    """The checksum of the sum. It is exact, as all numbers are whole."""
    if (tasks, size) not in _sums:
        arrays = (pattern(size, seed) for seed in range(tasks))
        _sums[tasks, size] = checksum(reduce(lambda one, other: one + other, arrays))
    return _sums[tasks, size]


if __name__ == "__main__":
    main()
