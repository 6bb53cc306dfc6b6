"""Runs Ray's own tests, unchanged, on Ray alone and with the transparent mode, and compares.

``PYTHONPATH=tests python -m ray_upstream FOLDER``, where FOLDER is ``python/ray/tests`` of the installed
Ray. Each file runs in one process in each mode. A test that passes alone and not with Hoplite runs again in a
process of its own. If it fails again, ``ray_upstream.toml`` must list it with the reason. Otherwise the exit
status is 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from lab.systems.ray import ALONE

TESTS = Path(__file__).parent
LIST = TESTS / "ray_upstream.toml"

TIMEOUT = 180.0
"""Seconds for a test."""

EXCUSED_SHARE_MAX = 0.1
"""Largest excused share of the tests that pass on Ray alone."""

ALONE_MODE, HOPLITE_MODE = "alone", "hoplite"

MODES: dict[str, list[str]] = {ALONE_MODE: [], HOPLITE_MODE: ["-p", "ray_unchanged"]}
"""The arguments for pytest in each mode."""

PASSED, FAILED, SKIPPED, ENDLESS = "passed", "failed", "skipped", "not ended"

Outcomes = dict[tuple[str, str], str]
"""Outcomes by test and mode."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="python/ray/tests of Ray's repository")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="a file, or tests: file::name")
    parser.add_argument("--results", type=Path, default=Path("build/ray-upstream.jsonl"))
    parser.add_argument("--again", action="store_true", help="run also what the results have already")
    arguments = parser.parse_args()
    chosen = tomllib.loads(LIST.read_text())
    folder = arguments.folder.resolve()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    outcomes = {} if arguments.again else read(arguments.results)
    files = [path for name in chosen["files"] for path in sorted(folder.glob(name))]
    wanted, _, of_file = arguments.only.partition("::")
    only = f"{wanted}::{of_file or '*'}"
    for file in [path for path in files if fnmatch.fnmatchcase(path.name, wanted)]:
        tests = [test for test in collected(file) if fnmatch.fnmatchcase(test, only)]
        run_file(folder, tests, outcomes, arguments.results)
    return report(outcomes, only, chosen["excused"])


def read(results: Path) -> Outcomes:
    lines = results.read_text().splitlines() if results.exists() else []
    return {(line["test"], line["mode"]): line["outcome"] for line in map(json.loads, lines)}


def collected(file: Path) -> list[str]:
    found = subprocess.run(
        [*PYTEST, "--collect-only", file.name],
        cwd=file.parent,
        env=environment(),
        capture_output=True,
        text=True,
    )
    tests = [line for line in found.stdout.splitlines() if line.startswith(f"{file.name}::")]
    if not tests:
        print(f"{file.name}: nothing to run: {found.stdout.strip().splitlines()[-1:]}", flush=True)
    return tests


PYTEST = [
    *(sys.executable, "-m", "pytest", "-q", "--tb=short"),
    *("-c", os.devnull, "-p", "no:cacheprovider", "--rootdir=."),
    # A time-out by a signal ends one test only. The next one runs in the same process.
    *(f"--timeout={TIMEOUT:.0f}", "--timeout-method=signal"),
]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **ALONE, "PYTHONPATH": path}


def run_file(folder: Path, tests: list[str], outcomes: Outcomes, results: Path) -> None:
    """Run all tests in one process in each mode. Then run each that fails only with Hoplite on its own."""
    for mode in MODES:
        missing = [test for test in tests if (test, mode) not in outcomes]
        if missing:
            note(run(folder, mode, missing), outcomes, results)
    for test in tests:
        if outcomes.get((test, ALONE_MODE)) == PASSED and outcomes.get((test, HOPLITE_MODE)) != PASSED:
            note(run(folder, HOPLITE_MODE, [test]), outcomes, results)


def note(lines: list[dict[str, str]], outcomes: Outcomes, results: Path) -> None:
    with results.open("a") as file:
        for line in lines:
            outcomes[line["test"], line["mode"]] = line["outcome"]
            file.write(json.dumps(line) + "\n")
            why = line["why"].split("\n")[0]
            print(f"{line['mode']:8}{line['outcome']:10}{line['test']}  {why}", flush=True)


def run(folder: Path, mode: str, tests: list[str]) -> list[dict[str, str]]:
    """Each test's outcome and last error."""
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "report.xml"
        with subprocess.Popen(
            [*PYTEST, f"--junit-xml={report}", *MODES[mode], *tests],
            cwd=folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # SIGINT is ignored in the background of a shell, and Ray cancels tasks with it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        ) as process:
            try:
                process.wait(TIMEOUT * len(tests))
            except subprocess.TimeoutExpired:
                # Its child processes end too: Ray's processes and ours watch their parents.
                process.kill()
        found = dict(outcomes_in(report)) if report.exists() else {}
    missing = (ENDLESS, "the process of all of these did not end well")
    return [
        {"test": test, "mode": mode, "outcome": outcome, "why": why}
        for test in tests
        for outcome, why in [found.get(test.partition("::")[2], missing)]
    ]


def outcomes_in(report: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Outcome and error by the test's name in its file."""
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [found for kind in ("failure", "error") if (found := case.find(kind)) is not None]
        name = "::".join(filter(None, [*case.get("classname", "").split(".")[1:], case.get("name")]))
        if failures:
            yield name, (FAILED, (failures[0].get("message") or "").strip()[-200:])
        else:
            yield name, (PASSED if case.find("skipped") is None else SKIPPED, "")


def report(outcomes: Outcomes, only: str, excused: dict[str, str]) -> int:
    passed: Counter[str] = Counter()
    failing: dict[str, list[str]] = {}
    for (test, mode), outcome in outcomes.items():
        if mode != ALONE_MODE or outcome != PASSED or not fnmatch.fnmatchcase(test, only):
            continue
        file = test.split("::")[0]
        passed[file] += 1
        if outcomes.get((test, HOPLITE_MODE)) != PASSED:
            failing.setdefault(file, []).append(test)
    print("\n| file | pass on Ray alone | with Hoplite | excused |\n|---|---|---|---|")
    unexcused = []
    for file, count in passed.items():
        missing = failing.get(file, [])
        open_ones = [test for test in missing if reason(test, excused) is None]
        unexcused += open_ones
        print(f"| {file} | {count} | {count - len(missing)} | {len(missing) - len(open_ones)} |")
    for test in unexcused:
        print(f"fails only with Hoplite: {test}")
    share = (sum(map(len, failing.values())) - len(unexcused)) / max(1, passed.total())
    print(f"{passed.total()} pass on Ray alone; excused: {share:.1%}, at most {EXCUSED_SHARE_MAX:.0%}")
    return int(bool(unexcused) or share > EXCUSED_SHARE_MAX)


def reason(test: str, excused: dict[str, str]) -> str | None:
    return next((why for pattern, why in excused.items() if fnmatch.fnmatchcase(test, pattern)), None)


if __name__ == "__main__":
    sys.exit(main())
