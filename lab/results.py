"""The results of benchmarks, joined from their JSON files: the newest run of each case."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.report import RESULTS


@dataclass(frozen=True)
class Case:
    """One case, and its document."""

    rows: list[list[str]]
    summary: dict[str, Any]
    runs: Any
    document: dict[str, Any]


def joined(benchmark: str, folder: Path = RESULTS) -> list[Case]:
    """The newest run of every case of a benchmark, in the order in which the cases were first run.

    ``benchmark`` is the start of the file names, up to a dash. The list is empty if it has never run.
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
    """All documents of a benchmark, oldest first. Old documents without tables are left out."""
    read = [json.loads(path.read_text()) for path in folder.glob(f"{benchmark}-*.json")]
    whole = [document for document in read if "columns" in document]
    return sorted(whole, key=lambda document: str(document["when"]))
