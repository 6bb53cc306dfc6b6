"""The time of each operation by numbers of nodes and objects, and a cluster's memory in the long run.

Real daemons run on this machine with one client each, up to 64 nodes and 100,000 objects. They share its
cores, so operations that involve all nodes slow down with their number. Beyond that the real core is
simulated, with links of 100 us and 500 Mbit/s and processors that cost nothing: the result is the number of
steps of an operation. The simulation also times the turns of the control loops, in processor time of this
machine. Where it is repeated, the shortest time of each turn counts.

- *join*: from the start of a node's process until it has served a get (simulated: from its first input).
- *death*: from SIGKILL until round trips (a put, then a get on another node) are as fast as before again.
  That is at most twice the slowest of as long a time before (simulated: twice the median). The longest round
  trip meanwhile is beside it.
- *fill*: a put's share of the time while all clients put.
- *clear*: a delete's share when 1,000 objects are deleted at once (simulated: 65,536, the most in one call).
- *form*: until all nodes know each other.
- *source*: each source's share of a sum over many sources of 128 KiB. Three nodes put them one after the
  other while the fourth waits for the sum. The share must not grow with their number.
- *soak*: churn on five nodes. Every few seconds a node is killed or leaves, in turn, and comes back. Clients
  of all nodes put, get, reduce and delete meanwhile. No call that must succeed may time out twice.

In a soak, the growth of the private memory of each staying node must keep within the bound. It is that of a
straight line through the second half. Tombstones do not count: there are hundreds of thousands, and each
takes about 100 bytes for ten minutes.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import scale, soak
from lab.plots import scale as figure
from lab.report import Report, median, progress, size_of, size_text
from lab.results import RESULTS, ROOT, joined

NODES = (4, 16, 64)
OBJECTS = (1_000, 10_000, 100_000)
#: Numbers of simulated nodes. 4096 nodes take 40 minutes of one core and 11 GiB of memory.
SIMULATED = (4, 16, 64, 256, 1024)
SIMULATED_OBJECTS = (1_000, 10_000, 100_000, 1_000_000)
#: Numbers of sources of a sum, up to the largest that is allowed.
SOURCES = (256, 1024, 4096)
RUNS = 5
SIZE = 1 << 20

#: Nodes that hold the many objects.
OBJECT_NODES = 4

#: Objects in the simulated cluster when operations are measured against the number of nodes.
OBJECTS_BESIDE = 1_000

#: With more nodes than this, turns are timed only once.
REPEATED_NODES_MAX = 256

#: Store of a node when many nodes share this machine's memory, and when there are many objects.
STORE_OF_MANY = "64MiB"
STORE = "256MiB"
STORE_OF_SOURCES = "2GiB"

#: Longest allowed turn of a control loop.
TURN_TARGET_SECONDS = 10e-3

#: Events whose turns have this limit.
EVENTS = ("join", "death", "clear")

REAL, SIMULATION = "real", "simulated"
COLUMNS = (
    "operation",
    "nodes",
    "objects",
    "measured on",
    "median",
    "longest round trip",
    "longest turn",
    "must reach",
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nodes", type=int, nargs="*", default=NODES, help="real ones; none: not at all")
    options.add_argument("--objects", type=int, nargs="*", default=OBJECTS, help="on four real nodes")
    options.add_argument("--simulated", type=int, nargs="*", default=SIMULATED, help="nodes")
    options.add_argument("--simulated-objects", type=int, nargs="*", default=SIMULATED_OBJECTS)
    options.add_argument("--sources", type=int, nargs="*", default=SOURCES, help="of one sum")
    options.add_argument("--size", type=size_of, default=SIZE, help="of what is broadcast and reduced")
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="churn; 30 for the page")
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figures")
    arguments = options.parse_args()
    title = f"Operations by nodes and objects; {size_text(arguments.size)} in collectives"
    report = Report("scale", title, COLUMNS)
    for nodes in arguments.nodes:
        _against_nodes(nodes, arguments, report)
    for objects in arguments.objects:
        _against_objects(objects, arguments.runs, report)
    for sources in arguments.sources:
        _against_sources(sources, arguments.runs, report)
    for nodes in arguments.simulated:
        _simulate(nodes, OBJECTS_BESIDE, "nodes", arguments, report)
    for objects in arguments.simulated_objects:
        _simulate(OBJECT_NODES, objects, "objects", arguments, report)
    trouble = _soak(arguments.soak, report) if arguments.soak else []
    report.finish()
    figure.draw(joined("scale", RESULTS), arguments.figures)
    if trouble:
        raise SystemExit("; ".join(trouble))


def _against_nodes(nodes: int, arguments: argparse.Namespace, report: Report) -> None:
    runs: dict[str, list[float]] = {}
    worst = []
    with scale.cluster(nodes, STORE_OF_MANY) as on:
        for run in range(-1, arguments.runs):
            taken = {
                "put": scale.put(on),
                "get": scale.get(on),
                "delete": scale.delete(on),
                "broadcast": scale.broadcast(on, arguments.size),
                "reduce": scale.reduce(on, arguments.size),
            }
            if run < 0:
                continue
            died = scale.death(on)
            taken |= {"join": scale.join(on), "death": died.normal}
            worst.append(died.worst)
            told = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in taken.items())
            progress(f"{nodes} nodes: {told}")
            for name, seconds in taken.items():
                runs.setdefault(name, []).append(seconds)
    for name, all_seconds in runs.items():
        _Measured("nodes", name, nodes, 0, all_seconds, worst if name == "death" else []).add_to(report)


def _against_objects(objects: int, count: int, report: Report) -> None:
    runs: dict[str, list[float]] = {}
    worst = []
    for _ in range(count):
        with scale.cluster(OBJECT_NODES, STORE) as on:
            names, rate = scale.fill(on, objects)
            taken = {
                "fill": 1 / rate,
                "get": scale.get_some(on, names),
                "delete": scale.delete_some(on, names),
            }
            taken["join"] = scale.join(on)
            died = scale.death(on)
            taken["death"] = died.normal
            worst.append(died.worst)
            taken["clear"] = 1 / scale.clear(on, names)
        told = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in taken.items())
        progress(f"{objects} objects: {told}")
        for name, seconds in taken.items():
            runs.setdefault(name, []).append(seconds)
    for name, all_seconds in runs.items():
        more = worst if name == "death" else []
        _Measured("objects", name, OBJECT_NODES, objects, all_seconds, more).add_to(report)


def _against_sources(sources: int, count: int, report: Report) -> None:
    with scale.cluster(OBJECT_NODES, STORE_OF_SOURCES) as on:
        seconds = [scale.add_source(on, sources) for _ in range(count)]
    progress(f"{sources} sources: {median(seconds) * 1e3:.3f} ms each")
    _Measured("sources", "source", OBJECT_NODES, sources, seconds).add_to(report)


def _simulate(nodes: int, objects: int, against: str, arguments: argparse.Namespace, report: Report) -> None:
    command = ["cargo", "run", "--quiet", "--release", "--package", "hoplite-sim", "--bin", "hoplite-scale"]
    command += ["--", "--operations", "--nodes", str(nodes), "--objects", str(objects)]
    repeats = arguments.runs if nodes <= REPEATED_NODES_MAX else 1
    command += ["--bytes", str(arguments.size), "--repeats", str(repeats)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    for line in done.stdout.splitlines():
        told = dict(word.split("=", 1) for word in line.split())
        name = told["operation"]
        worst = [float(told["worst"])] if name == "death" else []
        turn = {
            "turn_seconds": float(told["turn"]),
            "turn_during": told["during"],
            "turn_wall_seconds": float(told["wall_turn"]),
            "turns": int(told["turns"]),
            "late_turns": int(told["late_turns"]),
            "cores_seconds": float(told["cores"]),
            "repeats": repeats,
        }
        seconds = [float(told["seconds"])]
        _Measured(against, name, nodes, objects, seconds, worst, SIMULATION, turn).add_to(report)
    progress(f"{nodes} nodes with {objects} objects simulated")


@dataclass(frozen=True)
class _Measured:
    """An operation with so many nodes and objects, measured on one of them at a time (`against`)."""

    against: str
    operation: str
    nodes: int
    objects: int
    seconds: Sequence[float]
    worst: Sequence[float] = ()
    how: str = REAL
    turn: dict[str, Any] = field(default_factory=dict)

    def add_to(self, report: Report) -> None:
        turn = self.turn
        promised = self.operation in EVENTS and turn
        facts = {
            "operation": self.operation,
            "against": self.against,
            "nodes": self.nodes,
            "objects": self.objects,
            "how": self.how,
        }
        report.add(
            (
                self.operation,
                str(self.nodes),
                f"{self.objects:,}" if self.objects else "few",
                self.how,
                time_text(median(self.seconds)),
                time_text(median(self.worst)) if self.worst else "",
                f"{time_text(turn['turn_seconds'])} ({turn['turn_during']})" if turn else "",
                f"a turn < {time_text(TURN_TARGET_SECONDS)}" if promised else "",
            ),
            case="{operation} against {against}, {nodes} nodes, {objects} objects, {how}".format(**facts),
            runs={"seconds": list(self.seconds), "worst": list(self.worst)},
            summary={
                **facts,
                "seconds": median(self.seconds),
                "worst_seconds": median(self.worst) if self.worst else None,
                **turn,
            },
        )


def time_text(seconds: float) -> str:
    """A time in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _soak(minutes: float, report: Report) -> list[str]:
    """Runs the soak. Returns its problems."""
    found = soak.run(minutes * 60)
    growth = max(found.growth.values())
    report.add(
        (
            "soak",
            str(soak.NODES),
            f"{found.calls:,} calls",
            REAL,
            f"{minutes:g} min",
            "",
            "",
            f"growth {growth / 2**20:.2f} MiB < {soak.GROWTH_BYTES_MAX / 2**20:g} MiB",
        ),
        case="soak",
        runs=found.samples,
        summary={
            "operation": "soak",
            "against": "time",
            "minutes": minutes,
            "growth_bytes": found.growth,
            "bound_bytes": soak.GROWTH_BYTES_MAX,
            "calls": found.calls,
            "faults": found.faults,
            "errors": found.errors,
            "trouble": found.trouble,
        },
    )
    return found.trouble


if __name__ == "__main__":
    main()
