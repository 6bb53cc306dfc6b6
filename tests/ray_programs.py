"""Runs the applications of examples/on_ray on the tests' Ray cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ray_cluster import SETTINGS, RayCluster, driver

ROOT = Path(__file__).parent.parent

TIMEOUT = 200.0
"""Seconds for a program. They take ten to thirty."""


def output_of(cluster: RayCluster, program: str, *arguments: str) -> str:
    """The output of a program on the cluster with four workers. After its end, no copies may be left."""
    command = [sys.executable, "-m", f"examples.on_ray.{program}", "--address", cluster.address]
    ended = subprocess.run(
        [*command, "--workers", "4", *arguments],
        cwd=ROOT,
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with driver(cluster, transparent=True):
        pass
    return ended.stdout


def number(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    assert found, printed
    return float(found[1])
