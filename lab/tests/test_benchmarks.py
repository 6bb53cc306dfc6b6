"""Each benchmark of Hoplite over hosts really runs, on few hosts and small objects, without peers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from lab import page, results
from lab.hosts import HostsUnavailable, require
from lab.results import ROOT

try:
    require()
except HostsUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

if shutil.which("iperf3") is None:
    pytest.skip("iperf3 is missing", allow_module_level=True)

FEW = ["--runs", "1", "--warm-up", "1", "--rate", "1000"]


@pytest.mark.parametrize(
    ("name", "cases", "arguments"),
    [
        ("collective", 4, ["--systems", "hoplite", "--hosts", "3", "--sizes", "64KiB", *FEW]),
        (
            "arrivals",
            3,
            ["--systems", "hoplite", "--hosts", "3", "--size", "1MiB", "--intervals", "0.01", *FEW],
        ),
        ("roundtrip", 2, ["--systems", "hoplite", "relays", "--sizes", "1KiB", "1MiB", *FEW]),
        (
            "unlimited",
            1,
            [
                "--systems",
                "hoplite",
                "chain",
                "--hosts",
                "3",
                "--size",
                "1MiB",
                "--runs",
                "1",
                "--warm-up",
                "1",
            ],
        ),
        ("degree", 1, ["--hosts", "4", "--sizes", "1MiB", *FEW]),
        pytest.param(
            *("calls", 23, ["--clusters", "1", "--rounds", "2", "--scale", "0.01", "--sizes", "64KiB"]),
            marks=pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is missing"),
        ),
        (
            "scale",
            16,
            ["--nodes", "2", "--objects", "40", "--simulated", "--simulated-objects", "--runs", "1"],
        ),
        ("objects", 6, ["--no-ray", "--clients", "2", "--scale", "0.01", "--runs", "1", "--warm-up", "0"]),
    ],
)
def test_a_benchmark_leaves_results_for_the_page(
    name: str, cases: int, arguments: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "lab", name, *arguments]
    environment = {**os.environ, "HOPLITE_LAB_RESULTS": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = results.joined(name, tmp_path)
    assert len(found) == cases
    (section,) = (section for section in page.SECTIONS if section.name == name)
    assert page.text(section, found, []).count("\n| ") > cases
