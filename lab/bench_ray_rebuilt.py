"""How long lost results of tasks on Ray take to be rebuilt, with Hoplite and on Ray alone.

A node that ran tasks and their readers is removed, and a new one like it is added. Then all results are read
again. Ray declares a silent node dead after two seconds here; its default is fourteen. The systems alternate,
and each run has a cluster of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from lab.failure.rebuilt_on_ray import CASES
from lab.report import RUNS_MIN, Report, median, progress
from lab.results import ROOT
from lab.systems.ray import ALONE

SYSTEMS = ("ray", "hoplite")

#: Hoplite's limit: so many times the time of Ray alone, plus so many seconds.
TIMES, MORE = 1.2, 0.5

#: Time-out of a run of all cases, in seconds.
RUN_SECONDS = 600.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=RUNS_MIN, help="of each system, in turns")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = options.parse_args()
    report = Report(
        "ray_rebuilt",
        "From the loss of a node until its results are there again",
        ("case", "system", "median", "spread", "must take"),
    )
    took: dict[tuple[str, str], list[float]] = {
        (case, system): [] for case in arguments.cases for system in SYSTEMS
    }
    for _ in range(arguments.runs):
        for system in SYSTEMS:
            for case, seconds in _run(system, arguments.cases).items():
                took[case, system].append(seconds)
                progress(f"{case}, {system}: {seconds:.1f} s")
    for (case, system), runs in took.items():
        most = TIMES * median(took[case, "ray"]) + MORE
        report.add(
            (
                case,
                system,
                f"{median(runs):.1f} s",
                f"{min(runs):.1f}-{max(runs):.1f}",
                f"<= {most:.1f} s" if system == "hoplite" else "-",
            ),
            case=f"{case}, {system}",
            runs=runs,
            summary={"seconds": median(runs)},
        )
    report.finish()


def _run(system: str, cases: list[str]) -> dict[str, float]:
    """Runs the cases. Returns the seconds of each."""
    ended = subprocess.run(
        [sys.executable, "-m", "lab.failure.rebuilt_on_ray", system, *cases],
        cwd=ROOT,
        env={**os.environ, **ALONE},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    found = {line["case"]: line["seconds"] for line in lines if "seconds" in line}
    if missing := set(cases) - found.keys():
        raise RuntimeError(f"{system}: {sorted(missing)}: {ended.stdout[-500:]} {ended.stderr[-2000:]}")
    return found


if __name__ == "__main__":
    main()
