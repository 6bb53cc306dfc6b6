"""The plan of a run: its objects, calls and faults, each with its time in a round.

A run is a sequence of rounds. A round is a time of chaos. After it all faults are healed, and all calls must
end. A round is drawn from the seed and its own number alone, so that a failed round can be run by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lab.chaos.contents import Content, Folded

#: Calls that make an object.
PUTS = ("put", "fill", "trickle")
REDUCES = ("reduce", "allreduce")
PRODUCERS = (*PUTS, *REDUCES)

#: Calls that return an object's bytes. The caller checks them.
GETS = ("view", "copy")


@dataclass(frozen=True)
class Thing:
    """An object: its content, and the hosts whose clients make it. They are tried in turn."""

    name: str
    content: Content
    homes: tuple[int, ...]

    @property
    def is_choosy(self) -> bool:
        """Whether the object may have other bytes when it is made again, as other sources may come first.

        It is then made again under another name, because a name stands for one content.
        """
        return isinstance(self.content, Folded) and any(
            part.k < len(part.parts) for part in _folded(self.content)
        )


def _folded(content: Folded) -> Iterator[Folded]:
    yield content
    for part in content.parts:
        if isinstance(part, Folded):
            yield from _folded(part)


@dataclass(frozen=True)
class Operation:
    """One call of one client. ``things[0]`` is its object. For a reduction, the sources follow."""

    number: int
    at: float
    call: str
    host: int
    #: Number of the client process on the host.
    slot: int
    things: tuple[str, ...]
    timeout: float
    details: Mapping[str, float] = field(default_factory=dict)
    #: The operation of a reduction.
    op: str = "sum"
    #: Whether it is retried until it succeeds or its object is deleted. Other operations have short
    #: time-outs.
    patient: bool = True
    #: Name in the table, for operations that are not part of the plan. By default it is the call.
    role: str = ""

    def __str__(self) -> str:
        details = "".join(f" {name}={value:g}" for name, value in self.details.items())
        fold = f" {self.op}" if self.call in REDUCES else ""
        limit = "" if self.patient else f" within {self.timeout:.2f} s"
        return (
            f"{self.at:7.3f}  op {self.number:<4} host {self.host} client {self.slot}  {self.call}{fold}"
            f" {' '.join(self.things)}{details}{limit}"
        )


@dataclass(frozen=True)
class Fault:
    """A fault at a time. It is healed ``lasts`` seconds later, at the latest at the end of the chaos."""

    at: float
    kind: str
    #: The hosts of the fault. For a partition, the hosts of one side.
    hosts: tuple[int, ...]
    lasts: float = 0.0
    #: Rate of a slow link.
    mbit: float = 0.0
    #: The operation whose client process is killed.
    operation: int | None = None

    def __str__(self) -> str:
        hosts = ",".join(map(str, self.hosts))
        lasts = f" for {self.lasts:.2f} s" if self.lasts else ""
        rate = f" to {self.mbit:g} Mbit/s" if self.mbit else ""
        aim = f" in op {self.operation}" if self.operation is not None else ""
        return f"{self.at:7.3f}  FAULT   host {hosts}  {self.kind}{rate}{lasts}{aim}"


@dataclass(frozen=True)
class Round:
    seed: int
    number: int
    hosts: int
    seconds: float
    #: The kinds of faults in this round, with the weight of each.
    weights: Mapping[str, float]
    things: Mapping[str, Thing]
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...]

    def lines(self) -> list[tuple[float, str]]:
        """The lines of the plan in order of time."""
        operations = [(operation.at, str(operation)) for operation in self.operations]
        return sorted([*operations, *((fault.at, str(fault)) for fault in self.faults)])

    def __str__(self) -> str:
        weights = ", ".join(f"{kind} {weight:g}" for kind, weight in self.weights.items() if weight)
        head = (
            f"round {self.number} of seed {self.seed}: {self.hosts} hosts, {self.seconds:g} s,"
            f" {len(self.things)} objects, {len(self.operations)} operations, {len(self.faults)} faults"
            f" ({weights})"
        )
        things = [f"         {thing.name}: {_describe(thing)}" for thing in self.things.values()]
        return "\n".join([head, *things, *(line for _, line in self.lines())])


def _describe(thing: Thing) -> str:
    content, homes = thing.content, ",".join(map(str, thing.homes))
    if isinstance(content, Folded):
        return f"{content.op} of {content.k} of {len(content.parts)}, {content.size} bytes, made on {homes}"
    return f"{content.dtype or 'bytes'}, {content.size} bytes, made on {homes}"
