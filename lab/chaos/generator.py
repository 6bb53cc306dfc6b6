"""Draws a round's operations from the seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from lab.chaos.contents import BITS_MAX, Content, Folded, Leaf
from lab.chaos.fault_generator import generate_faults
from lab.chaos.plan import PRODUCERS, Operation, Round, Thing

KIB, MIB = 1 << 10, 1 << 20

#: Largest size that is sent inline in directory messages.
INLINE_BYTES = 64 * KIB

#: Client processes in each host.
CLIENTS_PER_HOST = 2

#: Episodes per second of a round. Two cores run all hosts.
EPISODES_PER_SECOND = 1.4

#: Bytes that all operations of a round may move together, per second and host. It is a quarter of the links'
#: capacity, so that repairs have room and the machine is not the limit.
BYTES_PER_HOST_SECOND = 6 * MIB

#: Time-out of an operation that must succeed. It is longer than a round with all its checks, so a time-out
#: means that the operation hung.
PATIENT_SECONDS = 120.0

#: Probability of an impatient operation, whose time-out may be up before it can end.
IMPATIENT = 0.12

#: The last operations start so long before the end of the round, so that faults can still hit them.
LAST_SECONDS = 1.5

DTYPES = ("float32", "float64", "int32", "int64")


class Generator:
    def __init__(self, seed: int, number: int, hosts: int, seconds: float) -> None:
        self.random = Random(f"{seed}/{number}")
        self._seed, self._number, self._hosts, self._seconds = seed, number, hosts, seconds
        self._things: dict[str, Thing] = {}
        self._operations: list[Operation] = []
        self._budget = int(BYTES_PER_HOST_SECOND * hosts * seconds)

    def round(self) -> Round:
        kinds = (self._share, self._gather, self._sum, self._chain, self._abandon, self._rival)
        weights = (9, 2, 5, 3, 1, 1)
        for _ in range(int(EPISODES_PER_SECOND * self._seconds)):
            at = self.random.uniform(0.0, self._seconds - LAST_SECONDS)
            self.random.choices(kinds, weights)[0](at)
        operations = tuple(sorted(self._operations, key=lambda operation: operation.at))
        weights_of_faults, faults = generate_faults(
            self.random, self._hosts, self._seconds, operations, self._things
        )
        return Round(
            self._seed,
            self._number,
            self._hosts,
            self._seconds,
            weights_of_faults,
            self._things,
            operations,
            faults,
        )

    # Episodes: a few related operations from a start time on.

    def _share(self, at: float) -> None:
        """One object and many readers, before and after it exists."""
        readers = self._some_hosts(1, self._hosts)
        thing = self._leaf(self._size(len(readers)))
        self._put(thing, at)
        for host in readers:
            self._get(thing, host, self._around(at))
        if self.random.random() < 0.25:
            self._add("locate", self._around(at), self._host(), [thing])
        if self.random.random() < 0.25:
            self._add("prefetch", self._around(at), self._host(), [thing])
        self._maybe_delete([thing], at)

    def _gather(self, at: float) -> None:
        """Several objects from several hosts. One client waits for the first k, then gets all."""
        things = [self._leaf(self._size(2)) for _ in range(self.random.randint(2, 5))]
        for thing in things:
            self._put(thing, self._around(at))
        caller = self._host()
        k = self.random.randint(1, len(things))
        self._add("wait", self._around(at), caller, things, k=k)
        for thing in things:
            self._get(thing, caller, self._around(at))
        self._maybe_delete(things, at)

    def _sum(self, at: float) -> None:
        """A reduction of the first k of n, and readers of its result."""
        count = self.random.randint(2, min(self._hosts, 8))
        size = self._size(2 * count)
        sources = self._sources(count, size, self.random.choice(DTYPES), at, 0)
        target = self._reduction(sources, at, simple=self.random.random() < 0.3)
        for host in self._some_hosts(1, self._hosts):
            self._get(target, host, self._around(at))
        self._maybe_delete([target, *sources], at)

    def _chain(self, at: float) -> None:
        """Reductions over results of reductions, all called before any source exists."""
        size, dtype = self._size(12), self.random.choice(DTYPES)
        made: list[Thing] = []
        parts: list[Thing] = []
        bit = 0
        for _ in range(self.random.randint(2, 3)):
            fresh = self._sources(self.random.randint(2, 4), size, dtype, at, bit)
            bit += len(fresh)
            parts = [*parts, *fresh]
            made += fresh
            # The result of this reduction is a source of the next one.
            parts = [self._reduction(parts, at)]
            made += parts
        assert bit <= BITS_MAX
        for host in self._some_hosts(1, 4):
            self._get(parts[0], host, self._around(at))
        self._maybe_delete(list(reversed(made)), at)

    def _abandon(self, at: float) -> None:
        """A writer aborts half-way. Its readers get the object of the next writer."""
        thing = self._leaf(self._size(3, least=INLINE_BYTES + 1))
        self._add("abandon", at, thing.homes[0], [thing], until=round(self.random.random(), 2))
        for host in self._some_hosts(1, 3):
            self._get(thing, host, self._around(at))
        self._put(thing, at + self.random.uniform(0.05, 1.0))

    def _rival(self, at: float) -> None:
        """The same object is made on two hosts at about the same time, as by re-executed tasks."""
        thing = self._leaf(self._size(4))
        self._put(thing, at)
        self._put(thing, self._around(at), host=self._host())
        for host in self._some_hosts(1, 3):
            self._get(thing, host, self._around(at))
        self._maybe_delete([thing], at)

    # Parts of episodes.

    def _leaf(self, size: int) -> Thing:
        name = self._name()
        return self._thing(name, Leaf(name, size))

    def _sources(self, count: int, size: int, dtype: str, at: float, first_bit: int) -> list[Thing]:
        elements = max(1, size // (8 if dtype.endswith("64") else 4))
        sources = []
        for bit in range(first_bit, first_bit + count):
            name = self._name()
            thing = self._thing(name, Leaf(name, elements, dtype, bit))
            self._put(thing, self._around(at, 1.5))
            sources.append(thing)
        return sources

    def _reduction(self, parts: Sequence[Thing], at: float, simple: bool = False) -> Thing:
        """A reduction. ``simple``: of all sources, with an operation that may differ from the sum."""
        op, k = "sum", self.random.randint(max(1, len(parts) - 2), len(parts))
        first = parts[0].content
        if simple and isinstance(first, Leaf):
            floats = (first.dtype or "").startswith("float")
            ops = ["min", "max", *(["mean"] if floats and len(parts) in (2, 4, 8) else [])]
            op, k = self.random.choice([*ops, *([] if floats else ["prod"])]), len(parts)
        target = self._thing(self._name(), Folded(op, k, tuple(part.content for part in parts)))
        call = "allreduce" if self.random.random() < 0.25 else "reduce"
        fixed = float(self.random.random() < 0.2)
        moment = self._around(at)
        self._add(call, moment, target.homes[0], [target, *parts], op=op, k=k, fixed=fixed)
        return target

    def _put(self, thing: Thing, at: float, host: int | None = None) -> None:
        call = self.random.choices(("put", "fill", "trickle"), (6, 2, 2))[0]
        seconds = round(self.random.uniform(0.1, 2.0), 2) if call == "trickle" else 0.0
        where = thing.homes[0] if host is None else host
        self._add(call, at, where, [thing], seconds=seconds)

    def _get(self, thing: Thing, host: int, at: float) -> None:
        call = self.random.choice(("view", "copy"))
        hold = round(self.random.uniform(0.1, 2.0), 2) if self.random.random() < 0.2 else 0.0
        keep_waiting = float(self.random.random() < 0.4)
        self._add(call, at, host, [thing], hold=hold, keep_waiting=keep_waiting)

    def _maybe_delete(self, things: Sequence[Thing], at: float) -> None:
        chance = self.random.random()
        if chance < 0.12:  # in the middle of everything
            self._add("delete", at + self.random.uniform(0.0, 0.8), self._host(), things)
        elif chance < 0.45:
            self._add("delete", at + self.random.uniform(3.0, 8.0), self._host(), things)

    def _add(
        self,
        call: str,
        at: float,
        host: int,
        things: Sequence[Thing],
        *,
        op: str = "sum",
        **details: float,
    ) -> None:
        # Calls that make or delete objects must succeed, or other calls may not end.
        needed = call in (*PRODUCERS, "delete", "abandon")
        patient = needed or self.random.random() >= IMPATIENT
        timeout = PATIENT_SECONDS if patient else round(self.random.uniform(0.05, 4.0), 2)
        operation = Operation(
            len(self._operations),
            round(min(max(at, 0.0), self._seconds), 3),
            call,
            host,
            self.random.randrange(CLIENTS_PER_HOST),
            tuple(thing.name for thing in things),
            timeout,
            {name: value for name, value in details.items() if value},
            op,
            patient,
        )
        self._operations.append(operation)

    def _name(self) -> str:
        return f"s{self._seed}-r{self._number}-o{len(self._things)}"

    def _thing(self, name: str, content: Content) -> Thing:
        # Any host may make it if its first home is gone.
        homes = tuple(self.random.sample(range(self._hosts), self._hosts))
        self._things[name] = thing = Thing(name, content, homes)
        return thing

    def _size(self, uses: int, least: int = 1) -> int:
        """Bytes of an object that moves ``uses`` times. Sizes decrease as the round's budget runs low."""
        sizes = (
            (1, 4 * KIB),
            (INLINE_BYTES, INLINE_BYTES + 1),
            (INLINE_BYTES + 1, 2 * MIB),
            (2 * MIB, 12 * MIB),
            (12 * MIB, 40 * MIB),
        )
        low, high = self.random.choices(sizes, (20, 8, 35, 32, 5))[0]
        fair = max(self._budget // (2 * uses), least)
        size = min(max(self.random.randint(low, high), least), fair)
        self._budget -= size * uses
        return size

    def _host(self) -> int:
        return self.random.randrange(self._hosts)

    def _some_hosts(self, least: int, most: int) -> list[int]:
        return self.random.sample(range(self._hosts), self.random.randint(least, min(most, self._hosts)))

    def _around(self, at: float, spread: float = 2.0) -> float:
        """A time near ``at``: mostly close to it, in the middle of the work, sometimes much later."""
        if self.random.random() < 0.1:
            return at + self.random.uniform(0.0, 6.0)
        return at + self.random.uniform(-0.3, 1.0) * spread
