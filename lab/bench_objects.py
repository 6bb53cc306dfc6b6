"""Rates of put and get on one node, beside memcpy and Ray's plasma, and of look-ups over four nodes.

One client, or eight at once, make one call after the other.

- Large puts are compared with as many processes that copy private memory.
- A get asks again and again for the same object, which is already there.
- A first get asks for an object that another process has put, and that this process has not got before.
- A look-up asks which nodes have an object. For three objects out of four, the directory entry is on another
  node.

The systems alternate. Stores and buffers have been touched before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lab.daemons import on_loopback
from lab.objects import FIRST_GET, Clients, HopliteClients, Memcpy, ray_clients
from lab.plots import objects as figure
from lab.report import RUNS_MIN, Report, median, progress, size_text
from lab.results import RESULTS, joined
from lab.systems import ray

CLIENTS = (1, 8)
WARM_UP_RUNS = 3

#: Nodes that share the directory when look-ups are measured.
DIRECTORY_NODES = 4

#: Store of the node that objects are put on. It holds the objects of eight clients, and those of the next
#: run.
STORE = "4GiB"
DIRECTORY_STORE = "256MiB"

SMALL, LARGE = 1 << 10, 64 << 20


@dataclass(frozen=True)
class Case:
    """An operation of the clients. All clients together do it ``count`` times in a run."""

    call: str
    size: int
    count: int
    target: tuple[float, str] | None = None
    """The target for Hoplite's rate: a factor, and the system whose rate it multiplies."""


CASES = (
    Case("put", LARGE, 16, (0.8, "memcpy")),
    Case("put", SMALL, 2000, (2.0, "ray")),
    Case("get", LARGE, 2000),
    Case("get", SMALL, 20000, (2.0, "ray")),
    Case(FIRST_GET, SMALL, 2000, (2.0, "ray")),
)
LOOK_UP = Case("locate", SMALL, 2000)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=RUNS_MIN)
    options.add_argument("--warm-up", type=int, default=WARM_UP_RUNS, help="runs before those that count")
    options.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    options.add_argument("--scale", type=float, default=1.0, help="of the number of operations in a run")
    options.add_argument("--no-ray", action="store_true", help="without Ray, though it is installed")
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figure")
    arguments = options.parse_args()
    most = max(arguments.clients)
    report = Report(
        "objects",
        "Rates of put, get and look-up",
        ("operation", "size", "clients", "system", "rate", "that is", "one takes", "x hoplite", "must reach"),
    )
    with ExitStack() as stack:
        ours = HopliteClients(stack.enter_context(on_loopback(1, STORE)), most)
        stack.callback(ours.close)
        running: list[Clients] = [ours, Memcpy(ours)]
        if not arguments.no_ray and not ray.missing():
            running.append(stack.enter_context(ray_clients(most)))
        for case in CASES:
            for clients in arguments.clients:
                _measure(case, clients, running, arguments, report)
    with ExitStack() as stack:
        nodes = stack.enter_context(on_loopback(DIRECTORY_NODES, DIRECTORY_STORE))
        ours = HopliteClients(nodes, most)
        stack.callback(ours.close)
        for clients in arguments.clients:
            _measure(LOOK_UP, clients, [ours], arguments, report)
    report.finish()
    figure.draw(joined("objects"), arguments.figures)


def _measure(
    case: Case, clients: int, running: Sequence[Clients], arguments: argparse.Namespace, report: Report
) -> None:
    able = [
        one for one in running if case.call in one.calls and (one.name != Memcpy.name or case.size == LARGE)
    ]
    count = max(int(case.count * arguments.scale) // clients, 1)
    label = f"{case.call} {size_text(case.size)}, {clients} clients"
    rates: dict[str, list[float]] = {one.name: [] for one in able}
    for run in range(-arguments.warm_up, arguments.runs):
        for one in able:
            seconds = one.run(case.call, case.size, clients, count, f"{label}-{run}")
            if run >= 0:
                rates[one.name].append(clients * count / seconds)
        if run >= 0:
            told = ", ".join(f"{name} {taken[-1]:.0f}/s" for name, taken in rates.items())
            progress(f"{label}: {told}")
    medians = {name: median(taken) for name, taken in rates.items()}
    ours = medians[HopliteClients.name]
    report.add(
        *(_row(case, clients, name, rate, ours) for name, rate in medians.items()),
        case=label,
        runs=rates,
        summary={
            "call": case.call,
            "size": case.size,
            "clients": clients,
            "per_second": medians,
            "nodes": DIRECTORY_NODES if case is LOOK_UP else 1,
        },
    )


def _row(case: Case, clients: int, name: str, rate: float, ours: float) -> tuple[str, ...]:
    target = f">= {case.target[0]:g} x {case.target[1]}" if case.target and name == "hoplite" else "-"
    moved = f"{rate * case.size / 1e9:.2f} GB/s" if (case.call, case.size) == ("put", LARGE) else ""
    if case is LOOK_UP:
        moved = f"{rate / DIRECTORY_NODES:.0f}/s a node"
    return (
        case.call,
        size_text(case.size),
        str(clients),
        name,
        f"{rate:.0f}/s",
        moved,
        f"{clients / rate * 1e6:.0f} us",
        f"{rate / ours:.2f}",
        target,
    )


if __name__ == "__main__":
    main()
