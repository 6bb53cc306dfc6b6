"""Latency of every round on Ray while a host fails and comes back, with Hoplite and without: Figure 12.

There are two applications:

- serving by an ensemble on Ray Serve, where a majority's votes answer a batch;
- asynchronous SGD, which takes the half of the gradients that comes first.

Each participant has a host with a limited link of its own, and so has the driver.

All processes on a participant's host are killed at once: Ray's node, its workers, Hoplite's node and the
node's actor. Later a new node of Ray's starts there; Ray and Hoplite do the rest. The participant takes part
again when an answer of its model, even a late one, or a gradient of its worker has come. Ray's health checks
have their default settings and declare a node dead after some 14 s. A short sleep stands for computing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab import interleave
from lab.failure import ray_figure
from lab.hosts import Host, Hosts
from lab.network import Network
from lab.report import Report, median, progress
from lab.results import RESULTS, ROOT, joined
from lab.systems import peers, ray
from lab.worker import Process

APPLICATIONS = ("ensemble", "sgd")
SYSTEMS = ("hoplite", "ray")

PARTICIPANTS = 7

#: Runs of each system, in turns.
RUNS = 2

#: Times in seconds: the warm-up before a run, and the crash, the return and the end in the run.
WARM_UP, CRASH, RETURN, END = 5.0, 10.0, 35.0, 60.0

#: The host that crashes. The driver and Ray's head are in host 0.
VICTIM = 1

#: A round is slow if it takes so many times the median of the rounds before the crash.
SLOW = 1.5

#: The figures of a run, each in seconds. For several runs, the median and the range are shown.
COLUMNS = {
    "before": "a round before",
    "slowest_away": "slowest after the failure",
    "normal_after": "back to normal after",
    "away": "a round with one fewer",
    "slowest_back": "slowest after the return",
    "part_after": "takes part again after",
    "end": "a round at the end",
}

#: Hoplite's store on each host.
STORE_BYTES = 512 << 20

#: The peers' settings, but with Ray's own health checks.
SETTINGS = {name: value for name, value in ray.SETTINGS.items() if name not in ray.NEVER_DEAD}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--participants", type=int, default=PARTICIPANTS, help="besides the driver")
    options.add_argument("--rate", type=float, default=500.0, help="Mbit/s of each link, each way")
    options.add_argument("--only", choices=APPLICATIONS)
    options.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    options.add_argument("--runs", type=int, default=RUNS, help="of each system, in turns")
    options.add_argument("--figures", type=Path, default=RESULTS, help="folder for the figure")
    arguments = options.parse_args()
    network = Network(arguments.rate)
    report = Report(
        "ray_failure",
        f"{arguments.participants} participants and a driver on a host each, {network} each way, on Ray: "
        f"a host fails after {CRASH:g} s and comes back after {RETURN:g} s",
        ("application", "system", *COLUMNS.values()),
    )
    for name in [arguments.only] if arguments.only else APPLICATIONS:
        runs: dict[str, list[list[dict[str, Any]]]] = {system: [] for system in arguments.systems}
        for _ in range(arguments.runs):
            for system in arguments.systems:
                # A cluster of its own, so that earlier runs do not affect it.
                with interleave.hosts_like_all(arguments.participants + 1, network) as hosts:
                    runs[system].append(_run(name, system, hosts))
        for system in arguments.systems:
            _add_row(report, name, system, runs[system], hosts[VICTIM].address)
    report.finish()
    ray_figure.draw(joined("ray_failure"), arguments.figures)


def _run(name: str, system: str, hosts: Hosts) -> list[dict[str, Any]]:
    """Runs the program. Returns all rounds that count."""
    for host in hosts:
        # Ray takes for this host's address the one that a packet to the world would have.
        host.run(["ip", "route", "add", "default", "dev", "eth0"])
    folder = Path(sys.executable).parent
    with ray.cluster(hosts, folder, head_cpus=0, cpus=1, settings=SETTINGS) as nodes:
        if system == "hoplite":
            _start_nodes(hosts[0], nodes.head)
        command = [sys.executable, "-m", "lab.failure.on_ray", nodes.head, system, name, str(len(hosts) - 1)]
        driver = Process(command, hosts[0], peers.START_SECONDS, SETTINGS)
        try:
            _rounds(driver, WARM_UP)
            victim = hosts[VICTIM]

            def start() -> None:
                nodes.start(victim, cpus=1, life=1)

            rounds = _rounds(driver, END, (CRASH, victim.crash), (RETURN, start))
            driver.ask("close")
        finally:
            driver.close()
    return rounds


def _start_nodes(host: Host, head: str) -> None:
    """Starts Hoplite's nodes with the required store size. The program itself would choose another size."""
    command = [sys.executable, "-m", "lab.ray_nodes", head, str(STORE_BYTES)]
    host.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}, timeout=peers.START_SECONDS)


def _rounds(
    driver: Process, seconds: float, *events: tuple[float, Callable[[], None]]
) -> list[dict[str, Any]]:
    """Runs rounds one after the other for a time, and each of ``events`` at its time."""
    start = time.monotonic()
    timers = [threading.Timer(at, event) for at, event in events]
    for timer in timers:
        timer.start()
    rounds: list[dict[str, Any]] = []
    try:
        while (began := time.monotonic() - start) < seconds:
            took_part = driver.ask("step")["took_part"]
            took = time.monotonic() - start - began
            rounds.append({"began": began, "seconds": took, "took_part": took_part})
            if len(rounds) == 1 or took > SLOW * median(one["seconds"] for one in rounds):
                progress(f"at {began:.1f} s: {took:.2f} s, of {', '.join(took_part)}")
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
    return rounds


def _add_row(
    report: Report, name: str, system: str, runs: Sequence[Sequence[dict[str, Any]]], victim: str
) -> None:
    summaries = [told(rounds, victim) for rounds in runs]
    columns = {key: [summary[key] for summary in summaries] for key in COLUMNS}
    medians = {key: median(_sortable(values)) for key, values in columns.items()}
    report.add(
        (name, system, *(cell(values) for values in columns.values())),
        case=f"{name}, {system}",
        runs=runs,
        summary={
            **{key: None if math.isinf(seconds) else seconds for key, seconds in medians.items()},
            "application": name,
            "system": system,
            "crash": CRASH,
            "return": RETURN,
        },
    )


def _sortable(values: Sequence[float | None]) -> list[float]:
    """The values in a form that can be sorted. None becomes the largest."""
    return sorted(math.inf if value is None else value for value in values)


def cell(values: Sequence[float | None]) -> str:
    """The median and the range of several runs, as text. None stands for an event that did not happen."""
    ordered = _sortable(values)
    text = _time(median(ordered))
    return text if len(ordered) == 1 else f"{text} ({_time(ordered[0])}-{_time(ordered[-1])})"


def _time(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.2f} s"


def told(rounds: Sequence[dict[str, Any]], victim: str) -> dict[str, float | None]:
    """The figures of `COLUMNS` in seconds. None stands for an event that did not happen."""
    ends = [one["began"] + one["seconds"] for one in rounds]
    pairs = list(zip(rounds, ends, strict=True))
    before = median(one["seconds"] for one, end in pairs if end <= CRASH)
    away = [(one, end) for one, end in pairs if end > CRASH and one["began"] < RETURN]
    back = [(one, end) for one, end in pairs if one["began"] >= RETURN]
    # The slow rounds in a row count, from the running round or the next one. `slowest_away` shows single slow
    # rounds later.
    was_slow = [one["seconds"] > SLOW * before for one, _ in away]
    first = 0 if was_slow[0] else 1
    last = next((at for at in range(first, len(away)) if not was_slow[at]), len(away))
    normal = away[last - 1][1] if last > first else CRASH
    fewer = [one["seconds"] for one, end in away if one["began"] >= normal and end <= RETURN]
    part = next((end for one, end in back if victim in one["took_part"]), None)
    whole = [one["seconds"] for one, end in back if part is not None and one["began"] >= part]
    return {
        "before": before,
        "slowest_away": max(one["seconds"] for one, _ in away),
        "normal_after": normal - CRASH if normal < RETURN else None,
        "away": median(fewer) if fewer else None,
        "slowest_back": max((one["seconds"] for one, _ in back), default=None),
        "part_after": None if part is None else part - RETURN,
        "end": median(whole) if whole else None,
    }


if __name__ == "__main__":
    main()
