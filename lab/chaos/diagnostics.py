"""Reports: progress during the run, a table at its end, and all there is about a failure."""

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

from lab.report import RESULTS, ROOT, table

#: Without a terminal, a line of progress comes this often.
PROGRESS_SECONDS = 10.0

#: What is printed of a failure; all of it is in the folder.
PLAN_SECONDS = 3.0
PLAN_LINES_MAX = 60
LOG_LINES = 15


class ChaosFailed(Exception):
    """Something did not hold. ``names`` are the objects it is about."""

    def __init__(self, problems: Sequence[str], names: Sequence[str] = ()) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.names = tuple(problems), tuple(names)


class Journal:
    """Every event of the run with its moment, in a file; times count from the round's begin."""

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
    """Where sockets, logs and the journal of a run lie; kept if the run fails, under lab/results."""

    def __init__(self, name: str) -> None:
        # Under /tmp: the path of a Unix socket may be 107 bytes long.
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
    """One line: rewritten in place on a terminal, written now and then elsewhere."""

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
    """Numbers of the whole run."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.longest: dict[str, float] = defaultdict(float)
        self.bytes = 0
        self.checks = 0
        self.remade = 0
        #: Longest time that things took after the healing, over the rounds.
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
    """The lines of a plan near a moment, and all that name one of the objects."""
    near = [
        line
        for at, line in plan
        if abs(at - moment) <= PLAN_SECONDS or any(name in line.split() for name in names)
    ]
    return near[-PLAN_LINES_MAX:]


def tail(path: Path, lines: int = LOG_LINES) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
