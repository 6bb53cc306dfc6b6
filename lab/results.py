"""The results of benchmarks: one file of JSON lines for each benchmark.

A run of a benchmark is a line with its circumstances (command, time, machine, versions, columns). A line for
each of its cases follows. Only the newest run of a case counts, and only that is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: The folder of the results. Write results that are not to be kept to another folder.
RESULTS = Path(os.environ.get("HOPLITE_LAB_RESULTS", ROOT / "lab" / "results"))


@dataclass(frozen=True)
class Case:
    """One case, and the run that it is of."""

    rows: list[list[str]]
    summary: dict[str, Any]
    runs: Any
    document: dict[str, Any]


def path_of(benchmark: str, folder: Path = RESULTS) -> Path:
    return folder / f"{benchmark}.jsonl"


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds a line at once, so that a long benchmark that breaks off keeps its results so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(_line(line))


def joined(benchmark: str, folder: Path = RESULTS) -> list[Case]:
    """The newest run of every case of a benchmark, in the order in which the cases were first run.

    ``benchmark`` is the name of its file, up to a dash. The list is empty if it has never run.
    """
    found: dict[str, Case] = {}
    for document in documents(benchmark, folder):
        for case in document["cases"]:
            found[case["case"]] = Case(case["rows"], case["summary"], case["runs"], document)
    return list(found.values())


def newest(cases: Sequence[Case]) -> Case:
    """A case of the newest document."""
    return max(cases, key=lambda case: str(case.document["when"]))


def documents(benchmark: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """All runs of a benchmark with their ``cases``, oldest first."""
    paths = [path_of(benchmark, folder), *sorted(folder.glob(f"{benchmark}-*.jsonl"))]
    read = [document for path in paths for document in _read(path)]
    return sorted(read, key=lambda document: str(document["when"]))


def drop_superseded(path: Path) -> None:
    """Drops each case of which the file has a newer run."""
    kept = _read(path)
    last = {case["case"]: id(case) for document in kept for case in document["cases"]}
    for document in kept:
        document["cases"] = [case for case in document["cases"] if last[case["case"]] == id(case)]
    lines = [_lines(document) for document in kept if document["cases"]]
    whole = path.with_suffix(".new")
    whole.write_text("".join(lines))
    whole.replace(path)


def _read(path: Path) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        if "case" in line:
            read[-1]["cases"].append(line)
        else:
            read.append(line | {"cases": []})
    return read


def _lines(document: dict[str, Any]) -> str:
    head = {key: value for key, value in document.items() if key != "cases"}
    return "".join(_line(line) for line in (head, *document["cases"]))


def _line(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"
