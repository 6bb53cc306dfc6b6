"""Measures systems side by side: they alternate run by run, together with the current physical limit."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab import systems
from lab.hosts import Hosts
from lab.limits import iperf
from lab.network import Network, add_network_options
from lab.report import RUNS_MIN, Report, median, progress
from lab.results import RESULTS
from lab.systems import System, Tuned
from lab.worker import WorkerFailed

#: Runs of a size that do not count. They fault in the arenas, open the connections and let them find the
#: rate.
WARM_UP_RUNS = 3

#: Bytes that iperf3 sends to find B. The bucket's burst and the slow start are negligible over so many.
GOODPUT_BYTES = 64 << 20

#: The fastest of the kernel's algorithms on these links. Hoplite and iperf3 ask for it, the peers cannot.
CONGESTION_CONTROL = "cubic"

#: Smallest size of Hoplite's stores.
STORE_BYTES_MIN = 1 << 30

#: The columns after a benchmark's own columns.
COLUMNS = ("system", "median", "limit", "x limit", "spread", "x hoplite", "must reach")

#: The system whose results define the column "x hoplite".
OURS = "hoplite"


def add_interleave_options(options: argparse.ArgumentParser) -> None:
    """Adds the options of every benchmark in which systems take turns."""
    options.add_argument("--runs", type=int, default=RUNS_MIN)
    options.add_argument("--warm-up", type=int, default=WARM_UP_RUNS, help="runs before those that count")
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figures")


def add_run_options(options: argparse.ArgumentParser) -> None:
    """Adds further options of every benchmark over hosts with limited links."""
    add_interleave_options(options)
    options.add_argument("--rate", type=float, default=500.0, help="Mbit/s of each link, each way")


def add_system_options(options: argparse.ArgumentParser) -> None:
    """Adds further options of every benchmark that compares systems."""
    options.add_argument("--store", help="of each host; default: as large as is needed")
    options.add_argument(
        "--systems", nargs="+", choices=systems.MODULES, help="default: Hoplite and every peer installed"
    )


def add_options(options: argparse.ArgumentParser) -> None:
    """Adds all options of a benchmark that compares systems over hosts with limited links."""
    add_run_options(options)
    add_network_options(options)
    add_system_options(options)


def systems_asked_for(options: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[str]:
    """Names of the modules to use. The program ends if one was asked for and cannot be used here."""
    names: list[str] = arguments.systems or systems.installed()
    for name in names:
        if lacking := systems.module(name).missing():
            options.error(f"{name}: {lacking}")
    return names


def store_for(size: int) -> str:
    """The default of ``--store``: room for so many bytes of objects on each host."""
    return str(max(STORE_BYTES_MIN, size))


def report_name(benchmark: str, network: Network) -> str:
    """The name of the results. It differs for racks and capped flows, as figures show plain links only."""
    return benchmark if network.is_plain else f"{benchmark}_shaped"


@contextmanager
def hosts_like_all(count: int, network: Network) -> Iterator[Hosts]:
    """A number of hosts whose links are the same for every system."""
    with Hosts(count, **asdict(network)) as hosts:
        for host in hosts:
            host.control_congestion(CONGESTION_CONTROL)
        yield hosts


@contextmanager
def opened(
    names: Sequence[str], count: int, network: Network, store: str
) -> Iterator[tuple[Hosts, list[System]]]:
    """A number of hosts with the systems running on them. A peer that does not start is left out."""
    with hosts_like_all(count, network) as hosts, ExitStack() as stack:
        running: list[System] = []
        for name in names:
            progress(f"{count} hosts: starting {name}")
            try:
                running += stack.enter_context(systems.module(name).opened(hosts, store))
            except WorkerFailed as failed:
                if name == OURS:
                    raise
                progress(f"{count} hosts: {name} is left out: {failed}")
        yield hosts, running


def goodput(hosts: Hosts) -> float:
    """The current rate of one link in bytes/s, over as many connections as fill it."""
    flows = hosts.network.flows_to_fill
    return iperf(hosts[0].address, GOODPUT_BYTES, hosts[0], hosts[1], flows).bytes_per_second


@dataclass(frozen=True)
class Cell:
    """A measurement of all systems: one case at one size over a number of hosts."""

    label: str
    """A unique label. The newest result of each label counts."""
    columns: tuple[str, ...]
    """The first columns of its rows."""
    facts: dict[str, Any]
    """Data for the summary, from which figures are drawn. It includes "case" and "size"."""
    run: Callable[[System, str], float]
    """Does a run of this name on a system, and returns its seconds."""
    limit: Callable[[], float]
    """Measures the physical limit in seconds."""
    target: float | None = None
    """The target for Hoplite, as a multiple of the limit or of the rival."""
    rival: str | None = None
    """A system that the target refers to, in place of the limit."""


def measure(cell: Cell, running: list[System], runs: int, warm_up: int, report: Report) -> None:
    """Adds the cell's rows. A peer that fails is removed from ``running``."""
    timed: dict[str, list[float]] = {system.name: [] for system in running}
    limits: list[float] = []
    for number in range(-warm_up, runs):
        seconds = _run_each(cell, running, f"{cell.label}-{number}")
        if number < 0:
            continue
        limits.append(cell.limit())
        told = ", ".join(
            f"{name} {_time(took)} = {took / limits[-1]:.2f} x" for name, took in seconds.items()
        )
        progress(f"{cell.label}: limit {_time(limits[-1])}: {told}")
        for name, took in seconds.items():
            timed[name].append(took)
    # The smallest limit counts, so that a disturbed measurement of the limit cannot improve the ratio.
    limit = min(limits)
    whole = [system for system in running if len(timed[system.name]) == runs]
    ours = median(timed[OURS]) if timed.get(OURS) else None
    report.add(
        *(_row(cell, system.name, timed[system.name], limit, ours) for system in whole),
        case=cell.label,
        runs=[
            {"limit_seconds": limits[i], "seconds": {system.name: timed[system.name][i] for system in whole}}
            for i in range(runs)
        ],
        summary={
            **cell.facts,
            "limit_seconds": limit,
            "systems": {
                system.name: _summary(cell, system, timed[system.name], limit, ours) for system in whole
            },
        },
    )


def _run_each(cell: Cell, running: list[System], name: str) -> dict[str, float]:
    seconds = {}
    for system in list(running):
        if cell.facts["case"] not in system.cases:
            continue
        try:
            seconds[system.name] = cell.run(system, f"{system.name}-{name}")
        except WorkerFailed as failed:
            if system.name == OURS:
                raise
            progress(f"{cell.label}: {system.name} is left out from here on: {failed}")
            running.remove(system)
    return seconds


def _summary(
    cell: Cell, system: System, taken: Sequence[float], limit: float, ours: float | None
) -> dict[str, Any]:
    seconds = median(taken)
    chosen = system.chosen(cell.facts["case"], cell.facts["size"]) if isinstance(system, Tuned) else None
    return {
        "seconds": seconds,
        "ratio": seconds / limit,
        "times_hoplite": seconds / ours if ours else None,
        "chosen": chosen,
    }


def _row(cell: Cell, name: str, taken: Sequence[float], limit: float, ours: float | None) -> tuple[str, ...]:
    seconds = median(taken)
    return (
        *cell.columns,
        name,
        _time(seconds),
        _time(limit),
        f"{seconds / limit:.3f}",
        f"{min(taken) / limit:.3f}-{max(taken) / limit:.3f}",
        f"{seconds / ours:.2f}" if ours else "-",
        f"<= {cell.target} x {cell.rival or 'limit'}" if cell.target and name == OURS else "-",
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.01 else f"{seconds * 1e6:.0f} us"
