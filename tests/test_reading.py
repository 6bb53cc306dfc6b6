"""Files and functions that docs/reading.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

FOLDERS = {
    "core/": "crates/hoplite-core/src/",
    "node/": "crates/hoplite-node/src/",
    "client/": "crates/hoplite-client/src/",
    "store/": "crates/hoplite-store/src/",
    "ray/": "python/hoplite/ray/",
}


def path_of(name: str) -> Path:
    for short, folder in FOLDERS.items():
        if name.startswith(short):
            return ROOT / folder / name.removeprefix(short)
    return ROOT / name


def test_each_function_is_in_a_file_beside_it() -> None:
    rows = [line for line in (ROOT / "docs/reading.md").read_text().splitlines() if line.startswith("| ")]
    found = 0
    for row in rows:
        names = re.findall(r"`([^`]+)`", row)
        files = [path_of(name).read_text() for name in names if name.endswith((".rs", ".py"))]
        functions = [name for name in names if re.fullmatch(r"[a-z_]+", name)]
        for function in functions:
            assert any(re.search(rf"\b(fn|def) {function}\b", text) for text in files), row
            found += 1
    assert found > 50
