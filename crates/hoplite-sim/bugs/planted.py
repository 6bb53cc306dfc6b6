"""Plants known bugs into a copy of the sources, one at a time, and checks that the simulation finds each.

Each `NN-name.patch` beside this file is one realistic mistake in the core: a diff with a few lines before it.

    Mistake: what a good engineer might have got wrong
    Breaks: the promise that fails because of it (docs/fault-tolerance.md, docs/collectives.md)
    Rule: the rule of docs/simulation.md that finds it, and the code of that rule
    Says: a regular expression for the message of that rule
    Faults: the classes of faults to draw from (`all`, `none`, or a list with commas)
    Seeds: in how many worlds it must be found, counted from seed 0

A run first checks that the unchanged sources break no rule over these seeds. Then it plants each bug in turn.
A bug counts as found on a seed where its own rule breaks and where the unchanged sources are fine.

- `make planted-bugs` runs all of this; `--record` also writes results.json and docs/planted-bugs.md.
- `make planted-bugs-page` makes docs/planted-bugs.md from the patches and results.json, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

BUGS = Path(__file__).resolve().parent
ROOT = BUGS.parents[2]

# The measurements of the last recorded run, and the page made of them.
RESULTS = BUGS / "results.json"
PAGE = ROOT / "docs" / "planted-bugs.md"
PAGE_WIDTH = 110

PAGE_INTRO = """\
# Planted bugs

Made by `make planted-bugs-page` from the patches and results.json in crates/hoplite-sim/bugs; do not edit.

Each bug is a realistic mistake in the core, planted into a copy of the sources. A bug with a seed was found.
How that works, and which mistakes were not found: [simulation.md](simulation.md#planted-bugs).

- **Faults**: the [classes of faults](simulation.md#faults) that the worlds drew from.
- **Seed**: the first seed that found the bug; worlds ran one after the other from seed 0.
- **Seconds**: the time that those worlds took, without the build.
- **Rule**: the [rules](simulation.md#the-rules) that can find the bug, and their code in
  crates/hoplite-sim/src.
"""

# Everything cargo needs to build the simulation: the members, and what names them.
SOURCES = ["Cargo.toml", "Cargo.lock", "crates", "python"]

# Built here, away from `target/simulate`, so that nobody runs a planted bug by mistake.
SCRATCH = ROOT / "target" / "planted-bugs"
TREE = SCRATCH / "tree"
BINARY = SCRATCH / "build" / "simulate" / "hoplite-sim"
SOUND = SCRATCH / "hoplite-sim-sound"

# One run over all seeds, of sources that may be so wrong that they never come to rest.
SECONDS = 300
# The first build compiles every dependency.
BUILD_SECONDS = 1200

HEADERS = ["Mistake", "Breaks", "Rule", "Says", "Faults", "Seeds"]
VIOLATION = re.compile(r"^\s*=> seed (\d+): (.*)$", re.MULTILINE)
VIOLATION_SHOWN = 160


class PlantingError(Exception):
    """A patch that does not apply or build, or sources that do not."""


@dataclass
class Bug:
    name: str
    patch: Path
    headers: dict[str, str]

    @classmethod
    def read(cls, patch: Path) -> Bug:
        """A bug from its patch; the text before the diff is `Key: value`, going on in indented lines."""
        headers: dict[str, str] = {}
        key = ""
        for line in patch.read_text().split("\ndiff --git ")[0].splitlines():
            if line.startswith(" ") and key:
                headers[key] += " " + line.strip()
            elif ":" in line:
                key, value = line.split(":", 1)
                headers[key] = value.strip()
        missing = [header for header in HEADERS if not headers.get(header)]
        if missing:
            raise PlantingError(f"{patch.name} does not say its {', '.join(missing)}")
        return cls(patch.stem, patch, headers)


@dataclass
class Finding:
    bug: Bug
    seed: int | None = None
    seconds: float = 0.0
    violation: str = ""
    trouble: str = ""


def sync() -> None:
    """Makes the copy equal to the sources. Files that are equal keep their times, so little is rebuilt."""
    wanted: set[Path] = set()
    for source in SOURCES:
        top = ROOT / source
        files = [top] if top.is_file() else [file for file in top.rglob("*") if file.is_file()]
        for file in files:
            copy = TREE / file.relative_to(ROOT)
            wanted.add(copy)
            content = file.read_bytes()
            if not copy.is_file() or copy.read_bytes() != content:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
    for copy in TREE.rglob("*"):
        if copy.is_file() and copy not in wanted:
            copy.unlink()


def run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a command in the copy, which git must not take for a part of the repository around it."""
    env = {
        **os.environ,
        "CARGO_TARGET_DIR": str(SCRATCH / "build"),
        # A bug changes a few lines of one crate.
        "CARGO_INCREMENTAL": "1",
        "GIT_CEILING_DIRECTORIES": str(TREE.parent),
    }
    return subprocess.run(command, cwd=TREE, env=env, timeout=seconds, text=True, capture_output=True)


def plant(bug: Bug) -> None:
    applied = run(["git", "apply", "--recount", "-C1", str(bug.patch)], BUILD_SECONDS)
    if applied.returncode != 0:
        raise PlantingError(f"does not apply: {applied.stderr.strip()}")


def build() -> None:
    command = ["cargo", "build", "--locked", "--profile", "simulate", "--package", "hoplite-sim"]
    built = run(command, BUILD_SECONDS)
    if built.returncode != 0:
        raise PlantingError(f"does not build:\n{built.stderr}")


def simulate(binary: Path, faults: str, seeds: range, *, keep_going: bool) -> list[tuple[int, str]]:
    """The seeds that break a rule, and how: the first one, or (`keep_going`) all of them."""
    if not seeds:
        return []
    command = [str(binary), "--seed", str(seeds.start), "--seeds", str(len(seeds)), f"--faults={faults}"]
    command += ["--reruns", "0", "--tail", "0", *(["--keep-going"] if keep_going else [])]
    told = run(command, SECONDS)
    broken = {int(seed): violation for seed, violation in VIOLATION.findall(told.stdout)}
    if told.returncode != 0 and not broken:
        raise PlantingError(f"the simulation ended with {told.returncode}: {told.stderr.strip()}")
    return sorted(broken.items())


def find(bug: Bug, sick: set[int]) -> Finding:
    """Builds the sources with the bug and runs seeds until one of them, well without it, breaks its rule.

    Other rules may break as well, of what the bug leads to; that is told, and the search goes on.
    """
    finding, seeds = Finding(bug), int(bug.headers["Seeds"])
    try:
        sync()
        plant(bug)
        build()
        if BINARY.read_bytes() == SOUND.read_bytes():
            raise PlantingError("the same binary as without it")
        began = time.monotonic()
        first = 0
        while True:
            broken = simulate(BINARY, bug.headers["Faults"], range(first, seeds), keep_going=False)
            finding.seconds = time.monotonic() - began
            if not broken:
                finding.trouble = f"not found in {seeds} seeds"
                break
            seed, violation = broken[0]
            if seed not in sick and re.search(bug.headers["Says"], violation):
                finding.seed, finding.violation = seed, violation
                break
            if seed not in sick:
                print(
                    f"{bug.name}: seed {seed} breaks another rule: {violation[:VIOLATION_SHOWN]}", flush=True
                )
            first = seed + 1
    except subprocess.TimeoutExpired as late:
        finding.trouble = f"out of time after {late.timeout:.0f} s"
    except PlantingError as error:
        finding.trouble = str(error)
    return finding


def check_sound(bugs: list[Bug]) -> dict[str, set[int]]:
    """The seeds on which the sources as they are break a rule: there should be none."""
    sync()
    build()
    shutil.copy2(BINARY, SOUND)
    sick: dict[str, set[int]] = {}
    for faults in sorted({bug.headers["Faults"] for bug in bugs}):
        seeds = max(int(bug.headers["Seeds"]) for bug in bugs if bug.headers["Faults"] == faults)
        began = time.monotonic()
        broken = simulate(SOUND, faults, range(seeds), keep_going=True)
        sick[faults] = {seed for seed, _ in broken}
        how = "all fine" if not broken else f"{len(broken)} break a rule"
        seconds = time.monotonic() - began
        print(f"as it is, faults {faults}: {seeds} seeds, {how}, {seconds:.0f} s", flush=True)
        for seed, violation in broken:
            print(f"  seed {seed}: {violation[:VIOLATION_SHOWN]}", flush=True)
    return sick


def tell(finding: Finding) -> None:
    name = finding.bug.name
    if finding.seed is None:
        print(f"{name}: NOT FOUND: {finding.trouble}", flush=True)
        return
    violation = finding.violation[:VIOLATION_SHOWN]
    print(f"{name}: seed {finding.seed}, {finding.seconds:.1f} s: {violation}", flush=True)


def table(findings: list[Finding]) -> str:
    """One row for each bug, as docs/planted-bugs.md shows them."""
    lines = [
        "| bug | mistake | faults | seed | seconds | rule |",
        "|---|---|---|---|---|---|",
    ]
    for finding in findings:
        bug = finding.bug
        found = ["-", "-", finding.trouble]
        if finding.seed is not None:
            found = [str(finding.seed), f"{round(finding.seconds, 1):g}", bug.headers["Rule"]]
        cells = [f"`{bug.name}`", bug.headers["Mistake"], bug.headers["Faults"], *found]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def record(findings: list[Finding]) -> None:
    """Keeps what a run over all bugs measured, in place of what was measured before."""
    log = ["git", "log", "-1", "--format=%h %cs"]
    core, date = subprocess.run(log, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    found = {of.bug.name: {"seed": of.seed, "seconds": round(of.seconds, 1)} for of in findings}
    results = {"core": core, "date": date, "note": f"{os.cpu_count()} cores.", "found": found}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


def page(bugs: list[Bug]) -> str:
    """docs/planted-bugs.md, from the heads of the patches and the last recorded run."""
    results = json.loads(RESULTS.read_text())
    findings = []
    for bug in bugs:
        measured = results["found"].get(bug.name)
        if measured:
            findings.append(Finding(bug, measured["seed"], measured["seconds"]))
        else:
            findings.append(Finding(bug, trouble="not measured yet"))
    where = f"Measured on core `{results['core']}` ({results['date']}). {results['note']}"
    return f"{PAGE_INTRO}\n{textwrap.fill(where, PAGE_WIDTH)}\n\n{table(findings)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Plant known bugs, and check that the simulation finds them."
    )
    parser.add_argument("--only", help="some of them, by the beginnings of their names, with commas between")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--record", action="store_true", help=f"write {RESULTS.name} and {PAGE.name} if all are found"
    )
    mode.add_argument("--page", action="store_true", help=f"only write {PAGE.name}; nothing runs")
    mode.add_argument("--check-page", action="store_true", help=f"only check that {PAGE.name} is up to date")
    args = parser.parse_args()
    if args.only and (args.record or args.page or args.check_page):
        parser.error("the page shows all bugs: leave --only out")
    bugs = [Bug.read(patch) for patch in sorted(BUGS.glob("*.patch"))]
    if args.only:
        bugs = [bug for bug in bugs if bug.name.startswith(tuple(args.only.split(",")))]
    if not bugs:
        parser.error("there is no such bug")
    if args.page:
        PAGE.write_text(page(bugs))
        return 0
    if args.check_page:
        if PAGE.read_text() == page(bugs):
            return 0
        print(f"{PAGE.relative_to(ROOT)} is out of date: run make planted-bugs-page")
        return 1
    sick = check_sound(bugs)
    findings = []
    for bug in bugs:
        findings.append(find(bug, sick[bug.headers["Faults"]]))
        tell(findings[-1])
    print(f"\n{table(findings)}\n")
    missed = [finding.bug.name for finding in findings if finding.seed is None]
    ill = sum(len(seeds) for seeds in sick.values())
    print(f"{len(findings) - len(missed)} of {len(findings)} planted bugs found")
    if missed:
        print(f"not found: {', '.join(missed)}")
    if ill:
        print(f"the sources as they are break a rule on {ill} seeds")
    if args.record and not missed and not ill:
        record(findings)
        PAGE.write_text(page(bugs))
    return 1 if missed or ill else 0


if __name__ == "__main__":
    sys.exit(main())
