"""Runs programs written for Ray, unchanged, on Ray alone and with the transparent mode, and compares.

``PYTHONPATH=tests python -m transparently FOLDER_OR_FILE...`` ends with 1 if a program ends well alone and
not with Hoplite.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from ray_unchanged import COUNT, session

TIMEOUT = 150.0
"""Seconds for a program: the slowest of Ray's sleep for a minute and a half."""

CPUS = 8
"""What Ray believes to have: some programs have as many actors as a laptop has cores."""

ENDED = "ended"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", nargs="+", type=Path, metavar="FOLDER_OR_FILE")
    parser.add_argument("--here", action="store_true", help="run one, in this process, with Hoplite")
    arguments = parser.parse_args()
    found = [path.glob("*.py") if path.is_dir() else [path] for path in arguments.programs]
    programs = sorted(program.resolve() for some in found for program in some)
    if arguments.here:
        with_hoplite(programs[0])
        return 0
    worse = 0
    print("| program | Ray alone | with Hoplite | objects through Hoplite |\n|---|---|---|---|")
    for program in programs:
        alone, _ = outcome(str(program))
        together, objects = outcome(__file__, "--here", str(program))
        worse += alone == ENDED != together
        print(f"| `{program.name}` | {alone} | {together} | {objects} |", flush=True)
    return min(worse, 1)


def outcome(*command: str) -> tuple[str, str]:
    """How a program ended, and how many objects went through Hoplite, in words."""
    # Not where a program runs: it needs what is in the project's root.
    from ray_cluster import SETTINGS

    with tempfile.TemporaryDirectory() as folder:
        try:
            program = subprocess.run(
                [sys.executable, *command],
                cwd=folder,
                env={**os.environ, **SETTINGS, "RAY_OVERRIDE_RESOURCES": f'{{"CPU": {CPUS}}}'},
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            # What it has started ends with it: the kernel ends Ray's own processes, and those the others.
            return f"not ended after {TIMEOUT:g} s", "?"
    count = re.search(f"{COUNT} (\\d+)", program.stdout)
    return ENDED if program.returncode == 0 else last_error(program.stderr), count[1] if count else "-"


def last_error(errors: str) -> str:
    """Of the driver: workers' lines, which Ray repeats, begin with their process's number."""
    lines = [line for line in errors.splitlines() if "pid=" not in line]
    named = [line for line in lines if re.match(r"[\w.()]+(Error|Exception)\b", line)]
    return (named or lines or ["an error without a word"])[-1]


def with_hoplite(program: Path) -> None:
    """Run a program as if it had called `hoplite.ray.init` wherever Ray is initialised, also by itself."""
    import ray

    session.start()
    if "ray.init(" not in program.read_text():
        # Else Ray does it inside the first call, which was begun without the hooks.
        ray.init()
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        ray.shutdown()
        print(COUNT, session.objects)


if __name__ == "__main__":
    sys.exit(main())
