"""Checks after the healing: all calls end, all objects are right and can be deleted, and nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import hoplite

from lab.chaos.diagnostics import ChaosFailed, Tally, tail
from lab.chaos.faults import Breaker
from lab.chaos.members import Member
from lab.chaos.nodes import START_SECONDS, STOP_SECONDS, Life, Node
from lab.chaos.workload import Workload

#: Longest time until healed nodes see each other again.
MEET_SECONDS = 15.0

#: Longest time until every waiting call has ended.
FINISH_SECONDS = 30.0

#: Longest time until every object has been read on every host, and until all are deleted. It is three times
#: the time that the links need in a large round.
READ_SECONDS = 90.0
DELETE_SECONDS = 20.0

#: Reads at a time. Each is a thread, and all reads of a round at once would starve the daemons on two cores,
#: so that they declare each other dead.
LOOKS_MAX = 64

#: Time-out of a read of a deleted object, for the case that no node remembers the deletion.
DELETED_SECONDS = 3.0

#: Longest time until the last deletion has reached every store, entry and stream.
EMPTY_SECONDS = 15.0

#: Interval of the checks of the nodes.
LOOK_SECONDS = 0.1

#: How long the logs of the nodes are watched at the end: twice the pause between two dials.
QUIET_SECONDS = 4.0

#: Most private memory of a daemon that holds no objects. A fresh daemon takes 6 MiB, and one that moved 16
#: streams at once keeps their buffers.
PRIVATE_BYTES_MAX = 96 << 20

#: Most open files of such a daemon: a few of its own, and its connections to and from each peer. Each
#: direction has one for control, and the idle ones that two carry threads keep for the next stream, 4 at most
#: each.
FILES_MAX_OWN = 40
FILES_MAX_EACH = 2 * (1 + 2 * 4)

#: ``until(done, seconds)`` runs the loop and returns whether ``done`` became true in time.
Until = Callable[[Callable[[], bool], float], bool]


class FinalChecks:
    def __init__(
        self,
        nodes: Sequence[Node],
        members: Mapping[tuple[int, int], Member],
        tally: Tally,
        until: Until,
        show: Callable[[str], None],
    ) -> None:
        self._nodes, self._members, self._tally = nodes, members, tally
        self._until, self._show = until, show

    def meet(self, breaker: Breaker | None = None) -> None:
        """Checks that every daemon is up and sees every other."""
        self._within(
            "nodes up",
            START_SECONDS + STOP_SECONDS,
            lambda: (breaker is None or breaker.is_healed()) and not self._lives(),
            self._lives,
        )
        everyone = {node.address for node in self._nodes}
        self._within(
            "members met",
            MEET_SECONDS,
            lambda: all(set(status.members) == everyone for status in self._statuses()),
            lambda: [
                f"{node.address} sees only {', '.join(status.members)}"
                for node, status in zip(self._nodes, self._statuses(), strict=True)
                if set(status.members) != everyone
            ],
        )

    def finish(self, workload: Workload) -> None:
        """Checks that all waiting calls end. Lost objects are made again first."""
        for known in list(workload.known.values()):
            if known.made_at is not None:
                workload.audit(known)
        workload.remind()
        self._within("calls finished", FINISH_SECONDS, lambda: not workload.open, workload.unfinished)

    def read(self, workload: Workload) -> None:
        """Reads every object on every host. Deleted objects must stay deleted."""
        left = [(known, node.index) for known in workload.known.values() for node in self._nodes]

        def look_on() -> bool:
            # New reads start as others end.
            while left and len(workload.open) < LOOKS_MAX:
                known, host = left.pop(0)
                deleted = known.deleted_at is not None
                workload.look(known, host, DELETED_SECONDS if deleted else READ_SECONDS)
            return not workload.open

        self._within("contents read", READ_SECONDS, look_on, workload.unfinished)

    def delete(self, workload: Workload) -> None:
        left = [name for name, known in workload.known.items() if known.deleted_at is None]
        for turn, node in enumerate(self._nodes):
            names = left[turn :: len(self._nodes)]
            if names:
                workload.delete(names, node.index)
        self._within("all deleted", DELETE_SECONDS, lambda: not workload.open, workload.unfinished)

    def empty(self) -> None:
        """Checks that no copy, entry, stream, reduction, view, client or memory is left."""
        self._within(
            "stores empty",
            EMPTY_SECONDS,
            lambda: not self._left_behind(),
            self._left_behind,
        )
        limit = FILES_MAX_OWN + FILES_MAX_EACH * (len(self._nodes) - 1)
        problems = [f"{node.address}: {line}" for node in self._nodes for line in node.panics()]
        for node in self._nodes:
            if node.private_bytes() > PRIVATE_BYTES_MAX:
                problems.append(f"{node.address} holds {node.private_bytes()} bytes besides its store")
            if len(node.files()) > limit:
                problems.append(f"{node.address} has {len(node.files())} files open, more than {limit}")
        if problems:
            raise ChaosFailed(problems)

    def quiet(self) -> None:
        """Checks that idle daemons log nothing. For example, they must not dial dead nodes for ever."""
        self._show("listening to the silence")
        before = [node.log_bytes() for node in self._nodes]
        self._until(lambda: False, QUIET_SECONDS)
        loud = [node for node, size in zip(self._nodes, before, strict=True) if node.log_bytes() > size]
        if loud:
            raise ChaosFailed([f"{node.address} goes on logging: {tail(node.log, 1)[0]}" for node in loud])

    def stop(self) -> None:
        """Sends SIGTERM to all daemons. Each must end in time with status 0."""
        for node in self._nodes:
            node.leave()
        self._within(
            "daemons ended",
            STOP_SECONDS,
            lambda: all(node.life is Life.DOWN for node in self._nodes),
            self._lives,
        )

    def _within(
        self, what: str, seconds: float, done: Callable[[], bool], left: Callable[[], list[str]]
    ) -> None:
        self._show(f"waiting for: {what}")
        began = time.monotonic()
        if not self._until(done, seconds):
            raise ChaosFailed([f"not within {seconds:g} s after the healing: {what}", *left()])
        took = time.monotonic() - began
        self._tally.settled[what] = max(self._tally.settled[what], took)

    def _lives(self) -> list[str]:
        return [f"{node.address} is {node.life.value}" for node in self._nodes if node.life is not Life.UP]

    def _statuses(self) -> list[hoplite.Status]:
        statuses = []
        for node in self._nodes:
            try:
                statuses.append(node.status())
            except hoplite.HopliteError as error:
                raise ChaosFailed([f"{node.address} does not tell its status: {error}"]) from error
        return statuses

    def _left_behind(self) -> list[str]:
        problems = []
        clients = len(self._members) // len(self._nodes)
        for node, status in zip(self._nodes, self._statuses(), strict=True):
            counts = {
                "bytes used": status.used_bytes,
                "copies": status.copies,
                "entries": status.entries,
                "transfers": status.transfers,
                "reductions": status.reductions,
                # The status call itself is made by a client.
                "clients too many": max(0, status.clients - clients - 1),
            }
            left = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            if left:
                problems.append(f"{node.address} still has {left}")
        return problems
