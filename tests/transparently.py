"""Runs programs written for Ray, unchanged, on Ray alone and with the transparent mode, and compares.

``PYTHONPATH=tests python -m transparently FOLDER_OR_FILE...`` has the exit status 1 if a program succeeds
alone and fails with Hoplite.
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
"""Seconds for a program. The slowest ones of Ray sleep for a minute and a half."""

CPUS = 8
"""The number of processors that Ray is told. Some programs have as many actors as a laptop has cores."""

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
    """The outcome of a program and the number of objects that went through Hoplite, as text."""
    # Imported here, because a program's process cannot import files of the project's root.
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
            # Its child processes end too: the kernel ends Ray's own processes, and these end the others.
            return f"not ended after {TIMEOUT:g} s", "?"
    count = re.search(f"{COUNT} (\\d+)", program.stdout)
    return ENDED if program.returncode == 0 else last_error(program.stderr), count[1] if count else "-"


def last_error(errors: str) -> str:
    """The last error of the driver. Lines of workers, which Ray repeats, start with their process id."""
    lines = [line for line in errors.splitlines() if "pid=" not in line]
    named = [line for line in lines if re.match(r"[\w.()]+(Error|Exception)\b", line)]
    return (named or lines or ["an error without a word"])[-1]


def with_hoplite(program: Path) -> None:
    """Run a program that calls `hoplite.ray.init` wherever Ray is initialised, even implicitly."""
    import ray

    session.start()
    if "ray.init(" not in program.read_text():
        # Otherwise Ray initialises itself inside the first call, which then runs without the hooks.
        ray.init()
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        ray.shutdown()
        print(COUNT, session.objects)


if __name__ == "__main__":
    sys.exit(main())
