"""put, create+seal and local get on one node, beside one core's memcpy of touched memory.

Only the steady state counts. Each size is put and deleted a few times before timing starts, so that the
arena's pages are mapped and the buffers touched. memcpy and put alternate, so that both meet the same
machine.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from lab.daemons import on_loopback
from lab.limits import Memcpy
from lab.report import RUNS_MIN, Report, median, progress, size_text

PUT_SIZES = (64 << 20, 1 << 30)
GET_SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20, 1 << 30)

#: Rounds that do not count. The first faults in the arena, the second finds it warm.
WARM_UP_RUNS = 3

#: Local gets timed per run, as a single get is far shorter than typical disturbances.
GETS_PER_RUN = 20

PUT_TARGET = 0.8
GET_TARGET_SECONDS = 100e-6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=RUNS_MIN + 4)
    options.add_argument("--store", default="4GiB")
    arguments = options.parse_args()
    import hoplite

    report = Report(
        "memory",
        "One node: put, create+seal and local get",
        ("case", "size", "median", "limit", "ratio", "must reach"),
    )
    with on_loopback(1, arguments.store) as (daemon,):
        client = hoplite.connect(daemon.socket)
        for size in PUT_SIZES:
            _put(client, size, arguments.runs, report)
        for size in PUT_SIZES:
            _create(client, size, arguments.runs, report)
        for size in GET_SIZES:
            _get(client, size, arguments.runs, report)
    report.finish()


def _put(client: Any, size: int, runs: int, report: Report) -> None:
    source, memcpy = np.ones(size, np.uint8), Memcpy(size)
    timed: list[dict[str, float]] = []
    for run in range(-WARM_UP_RUNS, runs):
        limit = memcpy.seconds()
        name = f"put-{size}-{run}"
        began = time.perf_counter()
        client.put(source, name)
        took = time.perf_counter() - began
        client.delete(name)
        if run >= 0:
            progress(
                f"put {size_text(size)}: {size / took / 1e9:.2f} GB/s, memcpy {size / limit / 1e9:.2f} GB/s"
            )
            timed.append({"put_seconds": took, "memcpy_seconds": limit})
    ratio = median(run["memcpy_seconds"] / run["put_seconds"] for run in timed)
    put = median(run["put_seconds"] for run in timed)
    limit = median(run["memcpy_seconds"] for run in timed)
    report.add(
        (
            "put",
            size_text(size),
            f"{size / put / 1e9:.2f} GB/s",
            f"memcpy {size / limit / 1e9:.2f} GB/s",
            f"{ratio:.2f}",
            f">= {PUT_TARGET}",
        ),
        case=f"put {size}",
        runs=timed,
        summary={"of_memcpy": ratio, "put_seconds": put, "memcpy_seconds": limit},
    )


def _create(client: Any, size: int, runs: int, report: Report) -> None:
    timed = []
    for run in range(-WARM_UP_RUNS, runs):
        name = f"create-{size}-{run}"
        began = time.perf_counter()
        client.create(name, size, np.uint8).seal()
        took = time.perf_counter() - began
        client.delete(name)
        if run >= 0:
            timed.append(took)
    took = median(timed)
    progress(f"create+seal {size_text(size)}: {took * 1e6:.0f} us")
    report.add(
        ("create+seal", size_text(size), f"{took * 1e6:.0f} us", "no copy", "-", "-"),
        case=f"create {size}",
        runs=timed,
        summary={"seconds": took},
    )


def _get(client: Any, size: int, runs: int, report: Report) -> None:
    name = f"get-{size}"
    client.put(np.ones(size, np.uint8), name)
    timed = []
    for _ in range(runs * GETS_PER_RUN):
        began = time.perf_counter()
        view = client.get(name)
        timed.append(time.perf_counter() - began)
        assert view.nbytes == size
        del view
    client.delete(name)
    took = median(timed)
    progress(f"get {size_text(size)}: {took * 1e6:.0f} us")
    report.add(
        ("get", size_text(size), f"{took * 1e6:.0f} us", "map", "-", f"< {GET_TARGET_SECONDS * 1e6:.0f} us"),
        case=f"get {size}",
        runs=timed,
        summary={"seconds": took, "reached": took < GET_TARGET_SECONDS},
    )


if __name__ == "__main__":
    main()
