"""One large object got from another node over loopback, beside iperf3 and a bare TCP copy.

Besides the rate, it measures the processor time of both daemons, or of both ends of iperf3, and the daemons'
memory without their stores.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from lab.bench_idle import ticks
from lab.daemons import Daemon, on_loopback
from lab.limits import bare_copy, iperf
from lab.processes import resident
from lab.report import RUNS_MIN, Report, median, progress, size_of, size_text
from lab.worker import Worker

ADDRESS = "127.0.0.1"
SIZE = 1 << 30

#: Runs that do not count. They fault in both arenas and open the connections.
WARM_UP_RUNS = 3

#: Least share of the rate of a bare sender and receiver. iperf3 is no measure, as its buffers are small and
#: hot.
TARGET = 0.8


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=RUNS_MIN + 2)
    options.add_argument("--size", type=size_of, default=SIZE, help="as 1GiB")
    options.add_argument("--store", default="4GiB")
    arguments = options.parse_args()
    size = arguments.size
    timed: list[dict[str, float]] = []
    with on_loopback(2, arguments.store) as daemons:
        giver, taker = (Worker(daemon.socket) for daemon in daemons)
        expected = giver.ask("fill", size=size, seed=1)["checksum"]
        for run in range(-WARM_UP_RUNS, arguments.runs):
            seconds, busy = _get(giver, taker, daemons, f"loopback-{run}", expected)
            if run < 0:
                continue
            sent = iperf(ADDRESS, size)
            timed.append(
                {
                    "hoplite": size / seconds,
                    "iperf3": sent.bytes_per_second,
                    "bare": bare_copy(ADDRESS, size),
                    "hoplite_cpu_seconds": busy,
                    "iperf3_cpu_seconds": sent.cpu_seconds,
                    "private_bytes": max(resident(daemon.process.pid)["private"] for daemon in daemons),
                }
            )
            rates = {who: timed[-1][who] for who in ("hoplite", "iperf3", "bare")}
            progress(", ".join(f"{who} {rate / 1e9:.2f} GB/s" for who, rate in rates.items()))
        giver.close()
        taker.close()
    _report(size, timed)


def _get(
    giver: Worker, taker: Worker, daemons: Sequence[Daemon], name: str, expected: int
) -> tuple[float, float]:
    """Seconds of one get of an object that is complete on the other node, and the daemons' processor time.

    The content is checked.
    """
    giver.ask("put", id=name)
    before = sum(ticks(daemon) for daemon in daemons)
    answer = taker.ask("get", id=name)
    busy = sum(ticks(daemon) for daemon in daemons) - before
    if taker.ask("check")["checksums"] != [expected]:
        raise RuntimeError(f"{name} arrived with other bytes than were put")
    giver.ask("delete", ids=[name])
    return float(answer["ended"] - answer["began"]), busy / os.sysconf("SC_CLK_TCK")


def _report(size: int, timed: list[dict[str, float]]) -> None:
    report = Report(
        "loopback",
        "Two nodes on loopback: get",
        ("what", "size", "beside", "hoplite", "the other", "ratio", "must reach"),
    )
    got = median(run["hoplite"] for run in timed)
    for limit in ("iperf3", "bare"):
        ratio = median(run["hoplite"] / run[limit] for run in timed)
        most = median(run[limit] for run in timed)
        rates = (f"{got / 1e9:.2f} GB/s", f"{most / 1e9:.2f} GB/s")
        target = f">= {TARGET}" if limit == "bare" else "-"
        report.add(
            ("rate", size_text(size), limit, *rates, f"{ratio:.2f}", target),
            case=f"get {size} beside {limit}",
            runs=timed,
            summary={"ratio": ratio, "bytes_per_second": got},
        )
    ours, theirs = (
        median(run[f"{who}_cpu_seconds"] for run in timed) / size * 1e9 for who in ("hoplite", "iperf3")
    )
    cost = (f"{ours:.2f} s/GB", f"{theirs:.2f} s/GB")
    report.add(
        ("processor time", size_text(size), "iperf3", *cost, f"{ours / theirs:.2f}", "-"),
        case=f"processor time {size}",
        runs=timed,
        summary={"cpu_seconds_per_gb": ours, "iperf3_cpu_seconds_per_gb": theirs},
    )
    private = median(run["private_bytes"] for run in timed)
    report.add(
        ("memory besides the store", size_text(size), "-", f"{private / 2**20:.1f} MiB", "-", "-", "-"),
        case=f"memory {size}",
        runs=timed,
        summary={"private_bytes": private},
    )
    report.finish()


if __name__ == "__main__":
    main()
