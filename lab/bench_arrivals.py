"""Hosts that come one after the other: broadcast, reduce and allreduce as in the paper's Figure 8.

At a fixed interval, receivers ask or sources are put. In a system with a fixed group, a host enters the
collective at that moment. The time is from the first arrival to the last result.

The limit is the last arrival + S/B, or the least time of the collective if all came at once, if that is
longer. A system can be faster than the limit if it knows beforehand which hosts will come: it then sends
ahead, into the buffers of the last receiver's kernel. `lab.systems` defines who comes when.
"""

from __future__ import annotations

import argparse

from lab import interleave
from lab.hosts import Hosts
from lab.network import network_asked_for
from lab.plots import arrivals as figure
from lab.report import Report, size_of, size_text
from lab.results import joined
from lab.systems import STAGGERED_CASES, bytes_of_limit, delays

HOSTS = 8
SIZE = 32 << 20
INTERVALS = (0.0, 0.1, 0.2, 0.4)

#: Target for Hoplite, as a multiple of the limit.
TARGET = 1.05

#: Objects that a store has room for: sources, partial sums and the result.
ROOM_OBJECTS = 6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hosts", type=int, default=HOSTS)
    options.add_argument("--size", type=size_of, default=SIZE, help="as 1MiB")
    options.add_argument("--intervals", type=float, nargs="+", default=INTERVALS, help="seconds")
    options.add_argument("--cases", nargs="+", choices=STAGGERED_CASES, default=STAGGERED_CASES)
    interleave.add_options(options)
    arguments = options.parse_args()
    names = interleave.systems_asked_for(options, arguments)
    network = network_asked_for(options, arguments)
    report = Report(
        interleave.report_name("arrivals", network),
        f"{arguments.hosts} hosts one after the other, {size_text(arguments.size)}, {network} each way",
        ("case", "interval", *interleave.COLUMNS),
    )
    store = arguments.store or interleave.store_for(ROOM_OBJECTS * arguments.size)
    with interleave.opened(names, arguments.hosts, network, store) as (hosts, running):
        for case in arguments.cases:
            for interval in arguments.intervals:
                cell = _cell(case, arguments.size, interval, hosts)
                interleave.measure(cell, running, arguments.runs, arguments.warm_up, report)
    report.finish()
    figure.draw(joined("arrivals"), arguments.figures)


def _cell(case: str, size: int, interval: float, hosts: Hosts) -> interleave.Cell:
    last = max(delays(case, len(hosts), interval))

    def limit() -> float:
        goodput = interleave.goodput(hosts)
        return max(last + size / goodput, bytes_of_limit(case, size, len(hosts)) / goodput)

    told = f"{interval * 1e3:g} ms"
    return interleave.Cell(
        label=f"{case} {size_text(size)}, {len(hosts)} hosts {told} apart x {hosts.network}",
        columns=(case, told),
        facts={
            "case": case,
            "size": size,
            "hosts": len(hosts),
            "rate_mbit": hosts.network.rate_mbit,
            "interval_seconds": interval,
            "last_arrival_seconds": last,
        },
        run=lambda system, name: system.run(case, size, name, interval),
        limit=limit,
        target=TARGET,
    )


if __name__ == "__main__":
    main()
