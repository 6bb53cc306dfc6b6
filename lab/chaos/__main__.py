"""``python -m lab.chaos --minutes 5 --seed 7`` runs chaos, as root; see ``lab.chaos``."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator

import hoplite

from lab.chaos.diagnostics import ChaosFailed, Folder, around, tail
from lab.chaos.generator import Generator
from lab.chaos.nodes import STATUS_SECONDS, Life, Node
from lab.chaos.plan import Round
from lab.chaos.run import RATE_MBIT, Run
from lab.hosts import Hosts, HostsUnavailable

#: Seconds of chaos in a round, and of a round with its healing and checks.
CHAOS_SECONDS = 20.0
ROUND_SECONDS = 30.0

#: Most objects whose locations are printed for a failure.
TOLD_MAX = 8

#: Exit status if namespaces cannot be made.
UNAVAILABLE = 77


def main() -> int:
    options = argparse.ArgumentParser(prog="lab.chaos", description=__doc__)
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--seed", type=int, help="default: another one each time")
    options.add_argument("--hosts", type=int, help="default: 6 to 8, as the seed says")
    options.add_argument("--round", type=int, help="only this round of the seed, for as long as it takes")
    options.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    arguments = options.parse_args()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    count = arguments.hosts or random.Random(f"{seed}/hosts").randint(6, 8)
    plans = list(rounds(seed, count, arguments.minutes, arguments.round))
    if arguments.plan:
        print("\n\n".join(map(str, plans)))
        return 0
    print(f"chaos: seed {seed}, {count} hosts at {RATE_MBIT} Mbit/s, {len(plans)} rounds")
    try:
        return play(seed, count, plans)
    except HostsUnavailable as error:
        print(f"chaos: {error}", file=sys.stderr)
        return UNAVAILABLE


def rounds(seed: int, hosts: int, minutes: float, only: int | None) -> Iterator[Round]:
    numbers = range(max(1, round(minutes * 60 / ROUND_SECONDS))) if only is None else [only]
    return (Generator(seed, number, hosts, CHAOS_SECONDS).round() for number in numbers)


def play(seed: int, count: int, plans: list[Round]) -> int:
    began = time.monotonic()
    with Folder(f"chaos-{seed}") as folder, Hosts(count, rate_mbit=RATE_MBIT) as hosts:
        (folder.path / "plan.txt").write_text("\n\n".join(map(str, plans)) + "\n")
        run = Run(hosts, folder)
        try:
            run.begin()
            for plan in plans:
                run.play(plan)
            run.end()
            link_bytes = sum(host.link_bytes()["down"] for host in hosts)
        except ChaosFailed as failure:
            tell(failure, run, folder, seed, count)
            return 1
        finally:
            run.close()
        print()
        run.tally.print(run.faults, link_bytes)
        print(f"\n  clean: seed {seed}, {count} hosts, {time.monotonic() - began:.0f} s")
    return 0


def tell(failure: ChaosFailed, run: Run, folder: Folder, seed: int, hosts: int) -> None:
    """Reports a failure: prints the most important facts, and writes all into the folder."""
    lines = [f"\nchaos FAILED: seed {seed}, {hosts} hosts", *(f"  {problem}" for problem in failure.problems)]
    if run.round is not None:
        moment = time.monotonic() - run.round_began
        lines += [f"\n{moment:.3f} s after the begin of round {run.round.number}. The plan around it:"]
        lines += around(run.round.lines(), moment, failure.names)
        again = f"python -m lab.chaos --seed {seed} --hosts {hosts} --round {run.round.number}"
        lines += [f"\nthis round again: {again}"]
    run.dump()
    for id in dict.fromkeys((failure.names or run.waited_for())[:TOLD_MAX]):
        lines += ["", *(f"{id} as {node.address} sees it: {places(node, id)}" for node in run.nodes)]
    for node in run.nodes:
        lines += [f"\n{node.address}, {node.life.value}:", *status(node)]
        lines += [f"  {line}" for line in tail(node.log)]
    text = "\n".join(lines)
    run.close()
    (folder.path / "failure.txt").write_text(text + "\n")
    print(f"{text}\n\nplan, journal and all logs: {folder.keep()}", file=sys.stderr)


def places(node: Node, id: str) -> str:
    """The locations of an object according to a node, as text."""
    try:
        with hoplite.connect(str(node.socket), timeout=STATUS_SECONDS) as client:
            found = client.locations(id, timeout=STATUS_SECONDS)
    except hoplite.HopliteError as error:
        return f"{type(error).__name__}: {error}"
    copies = [
        f"{copy.node} ({'complete' if copy.complete else 'partial'}{', pinned' if copy.pinned else ''})"
        for copy in found.copies
    ]
    return f"{found.size} bytes, on {', '.join(copies) or 'none'}"


def status(node: Node) -> list[str]:
    if node.life is not Life.UP:
        return []
    try:
        told = node.status()
    except Exception as error:
        return [f"  no status: {error}"]
    held = f"copies {told.copies}, {told.used_bytes} bytes; entries {told.entries}"
    running = f"transfers {told.transfers}; reductions {told.reductions}; clients {told.clients}"
    return [
        f"  members {', '.join(told.members)}",
        f"  {held}, tombstones {told.tombstones}; {running}",
    ]


if __name__ == "__main__":
    sys.exit(main())
