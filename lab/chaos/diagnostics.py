"""Reports: progress during the run, a table at its end, and all facts about a failure."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from lab.report import table
from lab.results import RESULTS, ROOT

#: Interval of progress lines if there is no terminal.
PROGRESS_SECONDS = 10.0

#: Limits of what is printed about a failure. The folder has all of it.
PLAN_SECONDS = 3.0
PLAN_LINES_MAX = 60
LOG_LINES = 15


class ChaosFailed(Exception):
    """A check failed. ``names`` are the objects that it is about."""

    def __init__(self, problems: Sequence[str], names: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.names = tuple(problems), tuple(names)


class Journal:
    """A file with every event of the run and its time. Times count from the start of the round."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self.zero = time.monotonic()

    def write(self, text: str, at: float | None = None) -> None:
        moment = (time.monotonic() if at is None else at) - self.zero
        self._file.write(f"{moment:8.3f}  {text}\n")

    def head(self, text: str) -> None:
        self._file.write(f"\n{text}\nbegins at {datetime.now(UTC).isoformat()}, by the clock of the logs\n")
        self.zero = time.monotonic()

    def close(self) -> None:
        self._file.close()


class Folder:
    """The folder for sockets, logs and the journal of a run. Failed runs keep it under lab/results."""

    def __init__(self, name: str) -> None:
        # Under /tmp, because the path of a Unix socket may have only 107 bytes.
        self.path = Path(tempfile.mkdtemp(prefix="hoplite-chaos-", dir="/tmp"))
        self._name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"

    def keep(self) -> Path:
        RESULTS.mkdir(parents=True, exist_ok=True)
        kept = RESULTS / self._name
        shutil.copytree(self.path, kept, ignore=shutil.ignore_patterns("*.sock"))
        return kept.relative_to(ROOT)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Progress:
    """A line of progress. It is rewritten in place on a terminal, and written at intervals elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._live:
            sys.stderr.write(f"\r\x1b[K  {text}")
        elif now < self._next:
            return
        else:
            self._next = now + PROGRESS_SECONDS
            sys.stderr.write(f"  {text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Tally:
    """Counts of the whole run."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.longest: dict[str, float] = defaultdict(float)
        self.bytes = 0
        self.checks = 0
        self.remade = 0
        #: Longest time of each stage after the healing, over all rounds.
        self.settled: dict[str, float] = defaultdict(float)

    def add(self, kind: str, outcome: str, seconds: float) -> None:
        self.outcomes[kind][outcome] += 1
        self.longest[kind] = max(self.longest[kind], seconds)

    def operations(self) -> int:
        return sum(sum(counter.values()) for counter in self.outcomes.values())

    def print(self, faults: Counter[str], link_bytes: int) -> None:
        rows = [
            (
                kind,
                str(counter["done"]),
                ", ".join(f"{error} {count}" for error, count in sorted(counter.items()) if error != "done"),
                f"{self.longest[kind]:.2f} s",
            )
            for kind, counter in sorted(self.outcomes.items())
        ]
        table(("operation", "done", "ended otherwise, as the faults explain", "longest"), rows)
        print()
        table(("fault", "times"), [(kind, str(count)) for kind, count in sorted(faults.items())])
        print()
        settled = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.settled.items())
        print(f"  after each healing, at the longest: {settled}")
        print(
            f"  {self.checks} contents checked, {self.bytes / 2**20:.0f} MiB of them;"
            f" {self.remade} objects made again; {link_bytes / 2**20:.0f} MiB crossed the links"
        )


def around(plan: Sequence[tuple[float, str]], moment: float, names: Sequence[str]) -> list[str]:
    """The lines of a plan near a time, and all lines that name one of the objects."""
    near = [
        line
        for at, line in plan
        if abs(at - moment) <= PLAN_SECONDS or any(name in line.split() for name in names)
    ]
    return near[-PLAN_LINES_MAX:]


def tail(path: Path, lines: int = LOG_LINES) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
