"""Lines in which each application differs from its twin on Ray alone.

python -m examples.on_ray.differences
"""

from __future__ import annotations

import difflib
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Of all applications that have a twin."""
    return sorted(path.stem.removesuffix("_plain") for path in FOLDER.glob("*_plain.py"))


def lines_changed(name: str) -> tuple[int, int]:
    """Lines of the plain program that go, and lines that come for them; module docstrings do not count."""
    ours, plain = (_code(FOLDER / f"{name}{twin}.py") for twin in ("", "_plain"))
    changes = [line[0] for line in difflib.ndiff(plain, ours)]
    return changes.count("-"), changes.count("+")


def _code(path: Path) -> list[str]:
    """Without the docstring, in which twins tell what they are."""
    return path.read_text().split('"""', 2)[2].splitlines()


def main() -> None:
    """Print a table."""
    for name in names():
        gone, come = lines_changed(name)
        print(f"{name:<14} {come} lines for {gone}")


if __name__ == "__main__":
    main()
