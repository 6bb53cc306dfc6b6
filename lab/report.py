"""The report of a benchmark: every run in its file of results, and a table on the terminal."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.results import RESULTS, ROOT, append, drop_superseded, path_of

#: The environment of the peers that are Python packages (`make peers`). It is separate, so that the peers'
#: requirements do not affect the packages that Hoplite is tested with.
PEERS = ROOT / ".venv-peers"

#: Units with the largest first, so that the first one that fits is the right one.
UNITS = {"GiB": 30, "MiB": 20, "KiB": 10, "B": 0}

#: Fewest timed runs for a median.
RUNS_MIN = 5


def progress(text: str) -> None:
    """Prints one line of progress on standard error, so that tables can be piped."""
    print(f"  {text}", file=sys.stderr, flush=True)


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def size_text(size: int) -> str:
    unit, shift = next((pair for pair in UNITS.items() if size >= 1 << pair[1]), ("B", 0))
    return f"{size / (1 << shift):g} {unit}"


def size_of(text: str) -> int:
    """Bytes of "64KiB", "32MiB" or "100B". Raises ``ValueError`` if there is no unit."""
    for unit, shift in UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * (1 << shift))
    raise ValueError(f"{text!r} has no unit: {', '.join(UNITS)}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, indented by two."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for number, line in enumerate(lines):
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


class Report:
    """Collects the rows and runs of one benchmark in its file. ``finish`` prints the table."""

    def __init__(self, name: str, title: str, columns: Sequence[str]) -> None:
        self.title, self.columns = title, columns
        self._rows: list[Sequence[str]] = []
        self._path = path_of(name, RESULTS)
        self._head = {
            "benchmark": name,
            "title": title,
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": _command(),
            "machine": machine(),
            "load_average": os.getloadavg(),
            "versions": versions(),
            "columns": columns,
        }

    def add(self, *rows: Sequence[str], case: str, runs: Any, summary: dict[str, Any]) -> None:
        """Adds rows of the table that were measured side by side, with their runs and summary."""
        if not self._rows:
            append(self._path, self._head)
        self._rows += rows
        append(self._path, {"case": case, "rows": rows, "summary": summary, "runs": runs})

    def finish(self) -> None:
        """Prints the table, and drops older runs of its cases from the file."""
        print(f"\n{self.title}\n")
        table(self.columns, self._rows)
        drop_superseded(self._path)
        print(f"\n  all runs: {self._path}")


def machine() -> dict[str, Any]:
    """Processor, cores, memory and kernel, on which absolute times depend."""
    fields = (line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    model = next((value.strip() for key, value in fields if key.strip() == "model name"), "unknown")
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {"processor": model, "cores": os.cpu_count(), "memory_bytes": memory, "kernel": platform.release()}


def versions() -> dict[str, str]:
    from lab.daemons import binary

    found = {
        "python": platform.python_version(),
        "commit": _first_line("git", "-C", str(ROOT), "rev-parse", "HEAD"),
    }
    for package in ("hoplite", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["hoplited"] = _first_line(binary(), "--version")
    found["iperf3"] = _first_line("iperf3", "--version")
    found["openmpi"] = _first_line("mpirun.openmpi", "--version")
    found["mpich"] = _first_line("mpichversion")
    # Without the peers' environment, Ray may still be installed next to Hoplite.
    packages = [*(str(folder) for folder in PEERS.glob("lib/python*/site-packages")), *sys.path]
    for package in ("ray", "distributed", "torch"):
        installed = next(iter(metadata.distributions(name=package, path=packages)), None)
        found[package] = installed.version if installed else "not installed"
    return found


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "not installed"
    return (done.stdout.splitlines() or ["unknown"])[0]


def _command() -> str:
    """The command line. `python -m lab NAME` leaves its name in the first argument."""
    program = sys.argv[0] if sys.argv[0].startswith("lab ") else f"lab.{Path(sys.argv[0]).stem}"
    return shlex.join(["python", "-m", *program.split(), *sys.argv[1:]])
