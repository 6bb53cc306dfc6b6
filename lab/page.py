"""Makes docs/benchmarks.md and its figures from the results of the benchmarks: ``python -m lab.page``.

The newest run of every case counts, so a benchmark can be run in parts. The result files are kept with the
code, so that anyone can make the page. Keep trial runs and runs on other machines in another folder
(``HOPLITE_LAB_RESULTS=FOLDER``). The page leaves out a benchmark that has no results.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.failure import figure as failure
from lab.failure import ray_figure
from lab.interleave import COLUMNS, OURS
from lab.plots import (
    applications,
    arrivals,
    calls,
    collective,
    degree,
    objects,
    roundtrip,
    scale,
    scaling,
    unlimited,
)
from lab.plots.lines import LOOKS
from lab.recovery import figure as recovery
from lab.report import progress
from lab.results import RESULTS, ROOT, Case, joined, newest

Draw = Callable[[Sequence[Case], Path], list[str]]


def _no_figure(cases: Sequence[Case], folder: Path) -> list[str]:
    return []


def _newest(draw: Callable[[dict[str, Any], Path], list[str]]) -> Draw:
    """Makes a drawing function of one for a single document, which gets the newest document."""
    return lambda cases, folder: draw(newest(cases).document, folder)


@dataclass(frozen=True)
class Section:
    """One benchmark on the page. ``name`` is its name in ``python -m lab NAME``."""

    title: str
    name: str
    draw: Draw = _no_figure


SECTIONS = (
    Section("Collectives", "collective", collective.draw),
    Section("Hosts that come one after the other", "arrivals", arrivals.draw),
    Section("Round trips", "roundtrip", roundtrip.draw),
    Section("Applications on Ray", "applications", applications.draw),
    Section("Calls on Ray, and from what size Hoplite gains", "calls", calls.draw),
    Section("Failures in applications on Ray", "ray_failure", ray_figure.draw),
    Section("Results on Ray that went with a node", "ray_rebuilt"),
    Section("Tasks on Ray that end one after the other", "ray_arrivals"),
    Section("The degree of a reduction's tree", "degree", degree.draw),
    Section("Many nodes, simulated", "scaling", scaling.draw),
    Section("Many nodes, many objects, a long time", "scale", scale.draw),
    Section("Puts, gets and look-ups on a node", "objects", objects.draw),
    Section("Memory of one process", "memory"),
    Section("One connection at full speed", "loopback"),
    Section("Links without limits", "unlimited", unlimited.draw),
    Section("Failures in applications", "failure", _newest(failure.draw)),
    Section("Failures in the midst of a collective", "recovery", _newest(recovery.draw)),
    Section("How soon a failure is noticed", "detection"),
    Section("Idle clusters", "idle"),
)

#: The page's last section, written by hand: results of profiling.
NOT_REACHED = Path(__file__).with_name("not_reached.md")

HEAD = """# Benchmarks

Made by `python -m lab.page` from lab/results and lab/not_reached.md; do not edit. Each section names the
command that measured it, the commit, and the machine. S is an object's size, B the goodput of a link as
iperf3 finds it, and n the number of hosts.

- **Hosts** are network namespaces of one machine. Their links are token buckets on virtual cables. Ratios to
  the limit and to other systems hold elsewhere; absolute times may not.
- **Peers** run at their best. MPI runs with its defaults, and with settings searched for each case, size and
  number of hosts. Ray and Dask do each case in the fastest of the ways that their users have.
- **Runs.** All systems of a row alternate in one run, after runs that do not count. The results of
  collectives and round trips were checked byte by byte. A system without a number cannot do the case, or was
  not run.
- **Memory.** Since 2026-11-22, Hoplite's stores and the memory of Gloo's receivers are written once
  beforehand. Earlier runs may include the first use of memory, a second for each GiB here. Since 2026-11-23
  04:30, Hoplite, MPI and Gloo share the memory of sources and results. Before that, memory that one system
  freed was given back to the machine's host during the next one's run. This took a third of both processors.
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--results", type=Path, default=RESULTS, help="folder with the benchmarks' files")
    options.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder for page and figures")
    arguments = options.parse_args()
    page = [HEAD]
    for section in SECTIONS:
        cases = joined(section.name, arguments.results)
        if cases:
            page.append(text(section, cases, section.draw(cases, arguments.docs / "figures")))
        else:
            progress(f"{section.name} has left no results: it is left out")
    page.append(NOT_REACHED.read_text())
    path = arguments.docs / "benchmarks.md"
    path.write_text("\n".join(page))
    progress(f"page: {path}")


def text(section: Section, cases: Sequence[Case], figures: Sequence[str]) -> str:
    """The section as Markdown."""
    about = importlib.import_module(f"lab.bench_{section.name}").__doc__ or ""
    images = [f"![{section.title}](figures/{name}.svg)" for name in figures]
    rows = _side_by_side(cases) if "systems" in cases[0].summary else _as_printed(cases)
    parts = [f"## {section.title}", about.strip(), *images, _markdown(rows), *_origins(cases)]
    return "\n\n".join(parts) + "\n"


def _side_by_side(cases: Sequence[Case]) -> list[list[str]]:
    """A row for each case, number of hosts and size, with all systems' times as multiples of its limit."""
    cases = sorted(cases, key=_place)
    found = {name for case in cases for name in case.summary["systems"]}
    known = [name for name in LOOKS if name in found and name != OURS]
    peers = [*known, *sorted(found - {OURS, *known})]
    own = cases[0].document["columns"][: -len(COLUMNS)]
    head = [*own, "link", "limit", OURS, "x limit", "must reach", *(f"{name}, x limit" for name in peers)]
    return [head, *(_line(case, len(own), peers) for case in cases)]


def _place(case: Case) -> tuple[int, int, str]:
    """The place in the table: by number of hosts, size and name."""
    summary = case.summary
    return summary.get("hosts", 0), summary.get("size", 0), summary.get("case", "")


def _line(case: Case, own: int, peers: Sequence[str]) -> list[str]:
    systems = case.summary["systems"]
    printed = {row[own]: dict(zip(COLUMNS, row[own:], strict=True)) for row in case.rows}
    ours = printed.get(OURS, {})
    chosen = systems.get(OURS, {}).get("chosen")
    rate = case.summary["rate_mbit"]
    return [
        *case.rows[0][:own],
        "no limit" if rate is None else f"{rate:g} Mbit/s",
        case.rows[0][own + COLUMNS.index("limit")],
        ours.get("median", "") + (f" ({chosen})" if chosen else ""),
        ours.get("x limit", ""),
        ours.get("must reach", ""),
        *(f"{systems[name]['ratio']:.2f}" if name in systems else "" for name in peers),
    ]


def _as_printed(cases: Sequence[Case]) -> list[list[str]]:
    return [cases[0].document["columns"], *(row for case in cases for row in case.rows)]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def _origins(cases: Sequence[Case]) -> list[str]:
    """The runs of the cases: command, time, commit and machine."""
    told = []
    for document in {id(case.document): case.document for case in cases}.values():
        machine, versions = document["machine"], document["versions"]
        told.append(
            f"`{document['command']}` on {document['when'][:10]}, commit `{versions['commit'][:10]}`, "
            f"{machine['processor']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
            f"Linux {machine['kernel']}; {_numbers(versions)}."
        )
    return told


def _numbers(versions: dict[str, str]) -> str:
    names = ("hoplite", "openmpi", "mpich", "ray", "distributed", "torch", "python")
    return ", ".join(f"{name} {_number(versions[name])}" for name in names if name in versions)


def _number(version: str) -> str:
    """The number in a program's version text."""
    words = [word for word in version.split() if word[0].isdigit()]
    return words[0] if words else version


if __name__ == "__main__":
    main()
