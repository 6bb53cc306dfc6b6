"""Two nodes on loopback: one large object got on the other node, beside iperf3 and a bare TCP copy."""

from __future__ import annotations

import argparse

from lab.daemons import on_loopback
from lab.limits import bare_copy, iperf
from lab.report import RUNS_MIN, Report, median, progress, size_text
from lab.worker import Worker

ADDRESS = "127.0.0.1"
SIZE = 1 << 30

#: The first transfers fault both arenas in and open the connections.
WARM_UP_RUNS = 3

TARGET = 0.6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=RUNS_MIN + 2)
    options.add_argument("--size", type=int, default=SIZE, help="bytes")
    options.add_argument("--store", default="4GiB")
    arguments = options.parse_args()
    size = arguments.size
    timed: list[dict[str, float]] = []
    with on_loopback(2, arguments.store) as daemons:
        giver, taker = (Worker(daemon.socket) for daemon in daemons)
        expected = giver.ask("fill", size=size, seed=1)["checksum"]
        for run in range(-WARM_UP_RUNS, arguments.runs):
            hoplite = _get(giver, taker, f"loopback-{run}", expected)
            if run < 0:
                continue
            rates = {
                "hoplite": size / hoplite,
                "iperf3": iperf(ADDRESS, size),
                "bare": bare_copy(ADDRESS, size),
            }
            progress(", ".join(f"{who} {rate / 1e9:.2f} GB/s" for who, rate in rates.items()))
            timed.append(rates)
        giver.close()
        taker.close()
    _report(size, timed)


def _get(giver: Worker, taker: Worker, name: str, expected: int) -> float:
    """Seconds of one get of an object that is complete on the other node; its content is checked."""
    giver.ask("put", id=name)
    answer = taker.ask("get", id=name)
    if taker.ask("check")["checksums"] != [expected]:
        raise RuntimeError(f"{name} arrived with other bytes than were put")
    giver.ask("delete", ids=[name])
    return float(answer["ended"] - answer["began"])


def _report(size: int, timed: list[dict[str, float]]) -> None:
    report = Report(
        "loopback",
        "Two nodes on loopback: get",
        ("limit", "size", "get", "limit's rate", "ratio", "must reach"),
    )
    for limit in ("iperf3", "bare"):
        ratio = median(run["hoplite"] / run[limit] for run in timed)
        got, most = median(run["hoplite"] for run in timed), median(run[limit] for run in timed)
        report.add(
            (
                limit,
                size_text(size),
                f"{got / 1e9:.2f} GB/s",
                f"{most / 1e9:.2f} GB/s",
                f"{ratio:.2f}",
                f">= {TARGET}",
            ),
            case=f"get {size} beside {limit}",
            runs=timed,
            summary={"ratio": ratio, "bytes_per_second": got},
        )
    report.finish()


if __name__ == "__main__":
    main()
