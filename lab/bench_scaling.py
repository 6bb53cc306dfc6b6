"""Broadcast and reduce over 2 to 64 nodes: simulated, and checked against hosts of the lab.

`hoplite-sim` runs the real core over links with one latency and one rate, both measured between the lab's
hosts just before. Simulated processors cost nothing beyond their share of that latency. The lab's hosts share
two cores, and take longer for it.
"""

from __future__ import annotations

import argparse
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass

import hoplite

from lab import interleave
from lab.daemons import Daemon, on_hosts
from lab.network import Network
from lab.plots import scaling as figure
from lab.report import Report, median, progress, size_of, size_text
from lab.results import ROOT, joined
from lab.systems.hoplite import Hoplite
from lab.worker import Worker

NODES = (2, 4, 8, 16, 32, 64)
HOSTS = (4, 8, 16)
SIZE = 8 << 20
CASES = ("broadcast", "reduce")

#: Objects that a store has room for: sources, partial sums and results.
ROOM_OBJECTS = 6


@dataclass(frozen=True)
class Measured:
    """The results of the lab's hosts: seconds by case, and their links."""

    seconds: dict[str, list[float]]
    goodput: float
    latency: float


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, nargs="+", default=NODES, help="to simulate, 2 to 64")
    options.add_argument("--hosts", type=int, nargs="+", default=HOSTS, help="to check it against")
    options.add_argument("--size", type=size_of, default=SIZE, help="as 8MiB")
    interleave.add_run_options(options)
    arguments = options.parse_args()
    lab = {count: _in_lab(count, arguments) for count in arguments.hosts}
    goodput = max(measured.goodput for measured in lab.values())
    latency = median(measured.latency for measured in lab.values())
    report = Report(
        "scaling",
        f"{size_text(arguments.size)} at {goodput / 1e6:.1f} MB/s and {latency * 1e6:.0f} us one way",
        ("case", "nodes", "simulated", "S/B", "x S/B", "in the lab", "simulated / lab"),
    )
    limit = arguments.size / goodput
    for nodes in sorted({*arguments.nodes, *arguments.hosts}):
        simulated = _simulate(nodes, arguments.size, goodput, latency)
        for case in CASES:
            taken = lab[nodes].seconds[case] if nodes in lab else []
            _add_row(report, case, nodes, simulated[case], limit, taken)
    report.finish()
    figure.draw(joined("scaling"), arguments.figures)


def _in_lab(count: int, arguments: argparse.Namespace) -> Measured:
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    goodputs = []
    store = interleave.store_for(ROOM_OBJECTS * arguments.size)
    with ExitStack() as stack:
        hosts = stack.enter_context(interleave.hosts_like_all(count, Network(arguments.rate)))
        daemons = stack.enter_context(on_hosts(hosts, store))
        workers = [Worker(daemon.socket, host) for daemon, host in zip(daemons, hosts, strict=True)]
        system = Hoplite(workers, hosts.memory)
        stack.callback(system.close)
        for run in range(-arguments.warm_up, arguments.runs):
            taken = {case: system.run(case, arguments.size, f"{case}-{run}") for case in CASES}
            if run < 0:
                continue
            goodputs.append(interleave.goodput(hosts))
            progress(f"{count} hosts: " + ", ".join(f"{case} {taken[case]:.4f} s" for case in CASES))
            for case in CASES:
                seconds[case].append(taken[case])
        latency = median(_latencies(daemons))
    return Measured(seconds, max(goodputs), latency)


def _latencies(daemons: list[Daemon]) -> list[float]:
    """The latencies one way, in seconds, of all links that nodes have measured."""
    found = []
    for daemon in daemons:
        with hoplite.connect(daemon.socket) as client:
            found += [link.latency for link in client.status().links if link.latency is not None]
    return found


def _simulate(nodes: int, size: int, goodput: float, latency: float) -> dict[str, float]:
    """Runs the simulation. Returns seconds by case."""
    command = [
        "cargo",
        "run",
        "--quiet",
        "--release",
        "--package",
        "hoplite-sim",
        "--bin",
        "hoplite-scale",
        "--",
    ]
    command += ["--nodes", str(nodes), "--bytes", str(size)]
    command += ["--bytes-per-s", str(int(goodput)), "--latency-us", str(round(latency * 1e6))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    times = [float(word) for word in done.stdout.split()[1:]]
    progress(f"{nodes} nodes simulated: " + ", ".join(f"{time:.4f} s" for time in times))
    return dict(zip(CASES, times, strict=True))


def _add_row(
    report: Report, case: str, nodes: int, simulated: float, limit: float, taken: list[float]
) -> None:
    measured = median(taken) if taken else None
    report.add(
        (
            case,
            str(nodes),
            f"{simulated * 1e3:.1f} ms",
            f"{limit * 1e3:.1f} ms",
            f"{simulated / limit:.3f}",
            f"{measured * 1e3:.1f} ms" if measured else "-",
            f"{simulated / measured:.3f}" if measured else "-",
        ),
        case=f"{case} {nodes} nodes",
        runs=taken,
        summary={
            "case": case,
            "nodes": nodes,
            "simulated_seconds": simulated,
            "limit_seconds": limit,
            "lab_seconds": measured,
        },
    )


if __name__ == "__main__":
    main()
