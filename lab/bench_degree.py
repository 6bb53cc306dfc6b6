"""Reduce through a chain, a binary tree and a star, and our model's choice: the paper's Figure 15.

All of it runs on one cluster, in alternation. The node that is asked for the sum chooses the tree. On three
hosts, an option of the daemon sets the tree. A fourth host leaves the choice to the model, and the wire shows
which tree it chose. The sum of a few objects of up to 64 KiB takes no tree.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from lab import interleave
from lab.daemons import on_hosts
from lab.hosts import Hosts
from lab.interleave import OURS
from lab.network import Network
from lab.plots import degree as figure
from lab.report import Report, size_of, size_text
from lab.results import joined
from lab.systems import System
from lab.systems.hoplite import Hoplite
from lab.traffic import connections, edges
from lab.worker import Worker

HOSTS = (4, 8, 16)
SIZES = (128 << 10, 1 << 20, 8 << 20, 32 << 20)

#: The trees that a daemon can be told to choose. The hosts from 1 on ask for them in this order.
DEGREES = ("chain", "binary", "star")

#: Target for the model's choice, as a multiple of the best tree.
TARGET = 1.05

#: Objects that a store has room for: sources, partial sums and results.
ROOM_OBJECTS = 6


class Model(Hoplite):
    """Hoplite with its defaults, and the tree that its cost model chose last."""

    def __init__(self, workers: list[Worker], hosts: Hosts) -> None:
        super().__init__(workers, hosts.memory, OURS)
        self._hosts = hosts
        self._chosen = ""

    def run(self, case: str, size: int, name: str, interval: float | None = None) -> float:
        before = connections(self._hosts)
        seconds = super().run(case, size, name, interval)
        tree = edges(self._hosts, before, connections(self._hosts), bytes_min=size // 2)
        self._chosen = shape(tree)
        return seconds

    def chosen(self, case: str, size: int) -> str:
        return self._chosen


def shape(tree: set[tuple[int, int]]) -> str:
    """The name of a tree, from its (sender, receiver) edges."""
    inputs = max(sum(receiver == host for _, receiver in tree) for host in {end for _, end in tree})
    return DEGREES[min(inputs, len(DEGREES)) - 1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    options.add_argument("--sizes", type=size_of, nargs="+", default=SIZES, help="as 128KiB or 1MiB")
    interleave.add_run_options(options)
    arguments = options.parse_args()
    if min(arguments.hosts) <= len(DEGREES):
        options.error(f"one host for each tree and one for the model: {len(DEGREES) + 1} at least")
    report = Report(
        "degree",
        f"Reduce by the degree of the tree, {Network(arguments.rate)} each way",
        ("hosts", "size", *interleave.COLUMNS),
    )
    for count in arguments.hosts:
        _measure(count, arguments, report)
    report.finish()
    figure.draw(joined("degree"), arguments.figures)


def _measure(count: int, arguments: argparse.Namespace, report: Report) -> None:
    store = interleave.store_for(ROOM_OBJECTS * max(arguments.sizes))
    told = {host: ["--reduce-degree", degree] for host, degree in enumerate(DEGREES, 1)}
    with ExitStack() as stack:
        hosts = stack.enter_context(interleave.hosts_like_all(count, Network(arguments.rate)))
        daemons = stack.enter_context(on_hosts(hosts, store, own=told))
        workers = []
        for daemon, host in zip(daemons, hosts, strict=True):
            workers.append(Worker(daemon.socket, host))
            stack.callback(workers[-1].close)
        running: list[System] = [Model(workers, hosts)]
        # The first worker asks for the sum.
        running += [Hoplite(workers[host:] + workers[:host], hosts.memory, told[host][-1]) for host in told]
        for size in arguments.sizes:
            cell = _cell(size, hosts)
            interleave.measure(cell, running, arguments.runs, arguments.warm_up, report)


def _cell(size: int, hosts: Hosts) -> interleave.Cell:
    return interleave.Cell(
        label=f"degree {size_text(size)}, {len(hosts)} hosts x {hosts.network}",
        columns=(str(len(hosts)), size_text(size)),
        facts={"case": "reduce", "size": size, "hosts": len(hosts), "rate_mbit": hosts.network.rate_mbit},
        run=lambda system, name: system.run("reduce", size, name),
        limit=lambda: size / interleave.goodput(hosts),
        target=TARGET,
        rival="the best tree",
    )


if __name__ == "__main__":
    main()
