"""Draws a round's faults from the seed, mostly at hosts that are busy at the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from lab.chaos.plan import GETS, PRODUCERS, PUTS, REDUCES, Fault, Operation, Thing

#: Kinds of faults, and the range of their durations in seconds.
LASTS = {
    "kill-daemon": (0.05, 5.0),  # SIGKILL; started again at the same address
    "stop-daemon": (0.05, 3.0),  # SIGTERM and SIGINT: it must end at once; started again
    "leave-daemon": (0.05, 3.0),  # SIGTERM: it hands over what only it holds, then ends; started again
    "pause-daemon": (0.1, 5.0),  # SIGSTOP, then SIGCONT
    "kill-client": (0.0, 0.0),  # SIGKILL of a client process in the middle of a call
    "cut-link": (0.2, 6.0),
    "split": (0.5, 8.0),  # the network in two
    "slow-link": (1.0, 8.0),
}

#: Faults of which a host may have at most one at a time.
DAEMON_FAULTS = ("kill-daemon", "stop-daemon", "leave-daemon", "pause-daemon")
LINK_FAULTS = ("cut-link", "slow-link")

#: Rates of slow links in Mbit/s.
SLOW_MBIT = (2, 5, 20)

#: Mean seconds between two faults. Each round has one of these.
GAPS = (0.7, 1.2, 2.5)

#: Probability of two faults at the same time.
TWINS = 0.2

#: Probability that a fault is aimed at a host that is busy at the time.
AIMED = 0.7

#: Probability that a killed daemon stays dead until the end of the round.
GONE_FOR_GOOD = 0.1

#: Time before the first fault, in which operations start.
FIRST_AT = 0.5


def generate_faults(
    random: Random,
    hosts: int,
    seconds: float,
    operations: Sequence[Operation],
    things: Mapping[str, Thing],
) -> tuple[dict[str, float], tuple[Fault, ...]]:
    """The weights of the kinds, and the faults in order of time.

    Each round leaves out some kinds and favours others, so that faults that hide each other in most rounds
    occur alone in some.
    """
    weights = {kind: random.choice((0.0, 1.0, 1.0, 3.0)) for kind in LASTS}
    weights[random.choice(list(weights))] = 2.0
    gap = random.choice(GAPS)
    generator = _Generator(random, hosts, seconds, operations, things)
    faults: list[Fault] = []
    at = FIRST_AT
    while at < seconds:
        for _ in range(2 if random.random() < TWINS else 1):
            kind = random.choices(list(weights), list(weights.values()))[0]
            fault = generator.draw(kind, at)
            if fault is not None and _fits(fault, faults, hosts):
                faults.append(fault)
        at += random.expovariate(1 / gap)
    return weights, tuple(sorted(faults, key=lambda fault: fault.at))


@dataclass(frozen=True)
class _Generator:
    """Draws single faults of a round."""

    random: Random
    hosts: int
    seconds: float
    operations: Sequence[Operation]
    things: Mapping[str, Thing]

    def draw(self, kind: str, at: float) -> Fault | None:
        random, at = self.random, round(at, 3)
        # Short faults are drawn more often, because they end in the middle of the repair.
        least, most = LASTS[kind]
        lasts = round(least + (most - least) * random.random() ** 2, 3)
        if kind == "kill-client":
            return self._kill_client(at)
        if kind == "split":
            side = random.sample(range(self.hosts), random.randint(1, self.hosts // 2))
            return Fault(at, kind, tuple(sorted(side)), lasts)
        if kind == "kill-daemon" and random.random() < GONE_FOR_GOOD:
            lasts = self.seconds
        mbit = random.choice(SLOW_MBIT) if kind == "slow-link" else 0.0
        return Fault(at, kind, (self._target(at),), lasts, mbit)

    def _target(self, at: float) -> int:
        busy = [op for op in self.operations if at - 1.5 < op.at < at and op.call in (*PRODUCERS, *GETS)]
        if not busy or self.random.random() > AIMED:
            return self.random.randrange(self.hosts)
        operation = self.random.choice(busy)
        # The caller's host, or one that makes an object of the operation.
        makers = [self.things[name].homes[0] for name in operation.things]
        return self.random.choice([operation.host, *makers])

    def _kill_client(self, at: float) -> Fault | None:
        calls = (*PUTS, *REDUCES, *GETS, "abandon")
        coming = [op for op in self.operations if at <= op.at < at + 3 and op.call in calls]
        if not coming:
            return None
        operation = self.random.choice(coming)
        moment = round(operation.at + self.random.uniform(0.0, 0.4), 3)
        return Fault(moment, "kill-client", (operation.host,), operation=operation.number)


def _fits(fault: Fault, others: Sequence[Fault], hosts: int) -> bool:
    """Whether a host has no two faults of a family at a time, and enough hosts are without a fault."""
    overlapping = [
        other for other in others if other.at <= fault.at + fault.lasts and fault.at <= other.at + other.lasts
    ]
    if fault.kind == "split":
        return not any(other.kind == "split" for other in overlapping)
    for family in (DAEMON_FAULTS, LINK_FAULTS):
        same_host = any(other.kind in family and other.hosts == fault.hosts for other in overlapping)
        if fault.kind in family and same_host:
            return False
    ill = {other.hosts for other in overlapping if other.kind in (*DAEMON_FAULTS, "cut-link")}
    return fault.kind not in (*DAEMON_FAULTS, "cut-link") or len(ill | {fault.hosts}) <= hosts // 2
