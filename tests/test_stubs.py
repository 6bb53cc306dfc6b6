"""The stubs of the extension say what it is."""

import os
import subprocess
import sys
from pathlib import Path


def test_stubtest(tmp_path: Path) -> None:
    # From another directory: the sources beside the tests must not hide the installed package.
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "hoplite._hoplite"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
