"""Runs Ray's own tests, unchanged, on Ray alone and with the transparent mode, and compares.

``PYTHONPATH=tests python -m ray_upstream FOLDER``, where FOLDER is ``python/ray/tests`` of the Ray that is
installed. Each test has a process of its own. A test that passes alone and not with Hoplite must stand in
``ray_upstream.toml`` with the reason; else this ends with 1.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lab.systems.ray import ALONE

TESTS = Path(__file__).parent
LIST = TESTS / "ray_upstream.toml"

TIMEOUT = 300.0
"""Seconds for a test, as in Ray's own settings of pytest."""

EXCUSED_SHARE_MAX = 0.1
"""Of the tests that pass on Ray alone."""

MODES = {"alone": [], "hoplite": ["-p", "ray_unchanged"]}

PASSED, FAILED, SKIPPED, ENDLESS = "passed", "failed", "skipped", "not ended"

Outcomes = dict[tuple[str, str], str]
"""By test and mode."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="python/ray/tests of Ray's repository")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests whose file::name matches")
    parser.add_argument("--results", type=Path, default=Path("build/ray-upstream.jsonl"))
    parser.add_argument("--again", action="store_true", help="run also what the results have already")
    arguments = parser.parse_args()
    chosen = tomllib.loads(LIST.read_text())
    folder = arguments.folder.resolve()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    outcomes = {} if arguments.again else read(arguments.results)
    files = [path for name in chosen["files"] for path in sorted(folder.glob(name))]
    for test in (test for file in files for test in collected(file)):
        if fnmatch.fnmatchcase(test, arguments.only):
            run_both(folder, test, outcomes, arguments.results)
    return report(outcomes, arguments.only, chosen["excused"])


def read(results: Path) -> Outcomes:
    lines = results.read_text().splitlines() if results.exists() else []
    return {(line["test"], line["mode"]): line["outcome"] for line in map(json.loads, lines)}


def collected(file: Path) -> Iterator[str]:
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
    yield from tests


PYTEST = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir=."]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **ALONE, "PYTHONPATH": path}


def run_both(folder: Path, test: str, outcomes: Outcomes, results: Path) -> None:
    """With Hoplite only what passes alone."""
    for mode, plugin in MODES.items():
        if (test, mode) not in outcomes:
            begun = time.monotonic()
            outcome, why = run(folder, [*plugin, test])
            outcomes[test, mode] = outcome
            line = {
                "test": test,
                "mode": mode,
                "outcome": outcome,
                "seconds": round(time.monotonic() - begun, 1),
            }
            with results.open("a") as lines:
                lines.write(json.dumps({**line, "why": why}) + "\n")
            print(f"{mode:8}{outcome:10}{line['seconds']:6.1f} s  {test}  {why}", flush=True)
        if outcomes[test, "alone"] != PASSED:
            return


def run(folder: Path, arguments: list[str]) -> tuple[str, str]:
    """How it ended, and the last error."""
    with subprocess.Popen(
        [*PYTEST, "-rs", "--tb=short", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # In a shell's background it is ignored, and Ray cancels tasks by it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            # What it has started ends with it: Ray's processes, and ours, watch their parents.
            process.kill()
            printed, _ = process.communicate()
            return ENDLESS, ""
    if process.returncode == 0:
        return (PASSED if " passed" in printed.splitlines()[-1] else SKIPPED), ""
    errors = [line for line in printed.splitlines() if line.startswith("E  ")]
    return FAILED, errors[-1][1:].strip()[:200] if errors else printed.strip()[-200:]


def report(outcomes: Outcomes, only: str, excused: dict[str, str]) -> int:
    passed: Counter[str] = Counter()
    failing: dict[str, list[str]] = {}
    for (test, mode), outcome in outcomes.items():
        if mode != "alone" or outcome != PASSED or not fnmatch.fnmatchcase(test, only):
            continue
        file = test.split("::")[0]
        passed[file] += 1
        if outcomes.get((test, "hoplite")) != PASSED:
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
