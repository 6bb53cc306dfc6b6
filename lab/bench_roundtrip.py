"""Round trip of an object between two hosts, put and got on each: the paper's Figure 6.

The limit is a bare TCP connection on the same link, which sends as many bytes back and forth between two
buffers. MPI, whose processes spin, shows the cost of a library's send and receive. The bare relays show the
least cost of passing through a sleeping process on each host, as Hoplite's bytes do.
"""

from __future__ import annotations

import argparse

from lab import interleave
from lab.hosts import Hosts
from lab.limits import bare_round_trip
from lab.network import network_asked_for
from lab.plots import roundtrip as figure
from lab.report import Report, size_of, size_text
from lab.results import joined
from lab.systems import ROUND_TRIP, round_trips

SIZES = (1 << 10, 1 << 20, 256 << 20)

#: Targets for Hoplite as multiples of OpenMPI's send and receive, by size.
TARGETS = {1 << 10: 1.5, 1 << 20: 1.1, 256 << 20: 1.01}
RIVAL = "openmpi"

#: Objects that a store has room for: there and back, of this run and of the one before.
ROOM_OBJECTS = 4


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=size_of, nargs="+", default=SIZES, help="as 1KiB or 1MiB")
    interleave.add_options(options)
    arguments = options.parse_args()
    names = interleave.systems_asked_for(options, arguments)
    network = network_asked_for(options, arguments)
    report = Report(
        interleave.report_name("roundtrip", network),
        f"Round trips between two hosts, {network} each way",
        ("size", *interleave.COLUMNS),
    )
    store = arguments.store or interleave.store_for(ROOM_OBJECTS * max(arguments.sizes))
    with interleave.opened(names, 2, network, store) as (hosts, running):
        for size in arguments.sizes:
            cell = _cell(size, hosts)
            interleave.measure(cell, running, arguments.runs, arguments.warm_up, report)
    report.finish()
    figure.draw(joined("roundtrip"), arguments.figures)


def _cell(size: int, hosts: Hosts) -> interleave.Cell:
    return interleave.Cell(
        label=f"round trip {size_text(size)} x {hosts.network}",
        columns=(size_text(size),),
        facts={"case": ROUND_TRIP, "size": size, "hosts": 2, "rate_mbit": hosts.network.rate_mbit},
        run=lambda system, name: system.run(ROUND_TRIP, size, name),
        limit=lambda: bare_round_trip(hosts[0].address, size, round_trips(size), hosts[0], hosts[1]),
        target=TARGETS.get(size),
        rival=RIVAL,
    )


if __name__ == "__main__":
    main()
