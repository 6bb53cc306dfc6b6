"""Broadcast, gather, reduce and allreduce over hosts with limited links: the paper's Figures 7 and 14.

S is the object's size, n the number of hosts, and B the best goodput that iperf3 gets on the same link
between the runs.

- The limit of a broadcast or reduce is S/B.
- The limit of a gather is (n-1) S/B.
- The limit of an allreduce is 2 (n-1)/n S/B.

All hosts start at one instant, and the last one's time counts. `lab.systems` defines when each case ends. The
systems alternate, run by run. The content of every result is checked.
"""

from __future__ import annotations

import argparse

from lab import interleave
from lab.hosts import Hosts
from lab.network import network_asked_for
from lab.plots import collective as figure
from lab.report import Report, size_of, size_text
from lab.results import joined
from lab.systems import CASES, bytes_of_limit

HOSTS = (8,)
SIZES = (1 << 20, 32 << 20, 64 << 20)

#: Targets for Hoplite as multiples of the limit, from these sizes on.
TARGETS = {
    "broadcast": {1 << 20: 1.15, 32 << 20: 1.03},
    "gather": {32 << 20: 1.03},
    "reduce": {1 << 20: 1.2, 32 << 20: 1.03},
    "allreduce": {32 << 20: 1.03},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    options.add_argument("--sizes", type=size_of, nargs="+", default=SIZES, help="as 32KiB or 1MiB")
    options.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    interleave.add_options(options)
    arguments = options.parse_args()
    names = interleave.systems_asked_for(options, arguments)
    network = network_asked_for(options, arguments)
    report = Report(
        interleave.report_name("collective", network),
        f"Collectives, all hosts at once, {network} each way",
        ("hosts", "case", "size", *interleave.COLUMNS),
    )
    for count in arguments.hosts:
        store = arguments.store or interleave.store_for((count + 1) * max(arguments.sizes))
        with interleave.opened(names, count, network, store) as (hosts, running):
            for case in arguments.cases:
                for size in arguments.sizes:
                    cell = _cell(case, size, hosts)
                    interleave.measure(cell, running, arguments.runs, arguments.warm_up, report)
    report.finish()
    figure.draw(joined("collective"), arguments.figures)


def _cell(case: str, size: int, hosts: Hosts) -> interleave.Cell:
    crossing = bytes_of_limit(case, size, len(hosts))
    return interleave.Cell(
        label=f"{case} {size_text(size)}, {len(hosts)} hosts x {hosts.network}",
        columns=(str(len(hosts)), case, size_text(size)),
        facts={"case": case, "size": size, "hosts": len(hosts), "rate_mbit": hosts.network.rate_mbit},
        run=lambda system, name: system.run(case, size, name),
        limit=lambda: crossing / interleave.goodput(hosts),
        target=next((times for least, times in sorted(TARGETS[case].items())[::-1] if size >= least), None),
    )


if __name__ == "__main__":
    main()
