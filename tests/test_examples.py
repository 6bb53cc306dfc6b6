"""The README's program and the tour of failures run without errors and warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

TIMEOUT = 120.0
"""Seconds for a program. Each takes two or three."""


def output_of(*arguments: str) -> str:
    """The output of a Python program, which must succeed without warnings."""
    command = [sys.executable, "-W", "error", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout


def test_the_first_program_of_the_readme() -> None:
    (program, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    printed = output_of("-c", program)
    # The three sources of the sum, and the start of the sum.
    assert len(set(re.findall(r"'gradient-(\d)'", printed))) == 3


def test_the_tour_of_failures() -> None:
    printed = output_of("-m", "examples.failures")
    assert re.findall(r"^(\d)\. ", printed, re.MULTILINE) == ["1", "2", "3", "4"]
    assert " 1.00 times" in printed
    again = re.search(r"(\d+) of \d+ were made again", printed)
    assert again is not None
    assert int(again[1]) > 0
