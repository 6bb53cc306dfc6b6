"""Round trip of 1 KiB objects between two nodes on loopback: put here, a waiting get there, and back."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from lab.daemons import on_loopback
from lab.report import ROOT, Report, median, percentile, progress

SIZE = 1 << 10
TRIPS = 2000
WARM_UP_TRIPS = 200

#: Deleted in batches of this many trips, so that deletes are seldom in the timed path.
DELETE_EVERY = 500

TARGET_SECONDS = 1e-3
CALL_SECONDS = 30.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--trips", type=int, default=TRIPS)
    options.add_argument("--echo", metavar="SOCKET", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    trips = range(WARM_UP_TRIPS + arguments.trips)
    import hoplite

    if arguments.echo:
        _echo(hoplite.connect(arguments.echo), trips)
        return
    with on_loopback(2, "256MiB") as (here, there):
        again = [
            sys.executable,
            "-m",
            "lab.bench_roundtrip",
            "--trips",
            str(arguments.trips),
            "--echo",
            there.socket,
        ]
        echo = subprocess.Popen(again, cwd=ROOT)
        timed = _ping(hoplite.connect(here.socket), trips)[WARM_UP_TRIPS:]
        echo.wait()
    _report(timed)


def _ping(client: Any, trips: Iterable[int]) -> list[float]:
    data = np.ones(SIZE, np.uint8)
    timed = []
    for trip in trips:
        began = time.perf_counter()
        client.put(data, f"ping-{trip}")
        answer = client.get(f"pong-{trip}", timeout=CALL_SECONDS)
        timed.append(time.perf_counter() - began)
        assert answer.nbytes == SIZE
        _forget(client, "ping", trip)
        if trip % DELETE_EVERY == 0:
            progress(f"trip {trip}: {timed[-1] * 1e6:.0f} us")
    return timed


def _echo(client: Any, trips: Iterable[int]) -> None:
    for trip in trips:
        client.put(client.get(f"ping-{trip}", timeout=CALL_SECONDS), f"pong-{trip}")
        _forget(client, "pong", trip)


def _forget(client: Any, name: str, trip: int) -> None:
    """Deletes a batch that both sides are done with: the one before the last."""
    if trip % DELETE_EVERY == 0 and trip >= 2 * DELETE_EVERY:
        first = trip - 2 * DELETE_EVERY
        client.delete([f"{name}-{old}" for old in range(first, first + DELETE_EVERY)])


def _report(timed: list[float]) -> None:
    report = Report(
        "roundtrip",
        "Two nodes on loopback: 1 KiB put here, waiting get there, and back",
        ("case", "median", "p99", "must reach"),
    )
    trip, tail = median(timed), percentile(timed, 99)
    report.add(
        (
            "round trip 1 KiB",
            f"{trip * 1e6:.0f} us",
            f"{tail * 1e6:.0f} us",
            f"median < {TARGET_SECONDS * 1e6:.0f} us",
        ),
        case="round trip 1024",
        runs=timed,
        summary={"median_seconds": trip, "p99_seconds": tail},
    )
    report.finish()


if __name__ == "__main__":
    main()
