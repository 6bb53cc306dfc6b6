"""Broadcast of one large object over links without limits, where processors set the speed.

The limit is S/B, where B is what iperf3 gets between two hosts while the others rest. A chain of bare relays
over the same hosts shows how much of that the processors allow. Each relay receives into its memory and sends
on, and does nothing else.
"""

from __future__ import annotations

import argparse

from lab import interleave
from lab.hosts import Hosts
from lab.network import Network
from lab.plots import unlimited as figure
from lab.report import Report, size_of, size_text
from lab.results import joined
from lab.systems import chain

HOSTS = (2, 4)
SIZE = 1 << 30

CASE = "broadcast"

#: Objects that a store has room for: one of this run, and one of the run before that may not be deleted yet.
ROOM_OBJECTS = 2

#: Target for Hoplite as a multiple of the bare chain's time. It is 0.8 of its rate.
TARGET = 1.25


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    options.add_argument("--size", type=size_of, default=SIZE, help="as 1GiB")
    interleave.add_interleave_options(options)
    interleave.add_system_options(options)
    arguments = options.parse_args()
    names = interleave.systems_asked_for(options, arguments)
    report = Report(
        "unlimited", "Broadcast over links without limits", ("hosts", "size", *interleave.COLUMNS)
    )
    store = arguments.store or interleave.store_for(ROOM_OBJECTS * arguments.size)
    for count in arguments.hosts:
        with interleave.opened(names, count, Network(), store) as (hosts, running):
            interleave.measure(
                _cell(arguments.size, hosts), running, arguments.runs, arguments.warm_up, report
            )
    report.finish()
    figure.draw(joined("unlimited"), arguments.figures)


def _cell(size: int, hosts: Hosts) -> interleave.Cell:
    return interleave.Cell(
        label=f"{CASE} {size_text(size)}, {len(hosts)} hosts",
        columns=(str(len(hosts)), size_text(size)),
        facts={"case": CASE, "size": size, "hosts": len(hosts), "rate_mbit": None},
        run=lambda system, name: system.run(CASE, size, name),
        limit=lambda: size / interleave.goodput(hosts),
        target=TARGET,
        rival=chain.NAME,
    )


if __name__ == "__main__":
    main()
