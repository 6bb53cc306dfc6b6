"""The running operations, and a framework like that of a task system.

The framework knows the producer of each object. It retries calls that a fault ended. It runs the producer of
a lost object again under the same name, on another host if necessary. It deletes objects at their times.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.chaos.contents import to_json
from lab.chaos.diagnostics import ChaosFailed, Journal, Tally
from lab.chaos.judge import VANISHED, Attempt, Judge, Known
from lab.chaos.members import Member
from lab.chaos.nodes import Life, Node
from lab.chaos.plan import GETS, PRODUCERS, PUTS, Operation, Round

#: Pause before the framework retries a failed call.
RETRY_SECONDS = 0.3

#: Time after a daemon's death until the framework checks which of that host's objects have no copy any more.
AUDIT_SECONDS = 1.5

#: Time-out of such a check, and of the framework's own deletions.
AUDIT_LIMIT = 10.0
DELETE_LIMIT = 60.0

#: Calls that are not retried if a fault ended them.
ONCE = ("abandon", "locate", "prefetch")

Later = Callable[[float, Callable[[], None]], None]


class Workload:
    def __init__(
        self,
        plan: Round,
        nodes: Sequence[Node],
        members: Mapping[tuple[int, int], Member],
        judge: Judge,
        journal: Journal,
        tally: Tally,
        later: Later,
    ) -> None:
        self._nodes, self._members, self._judge = nodes, members, judge
        self._journal, self._tally, self._later = journal, tally, later
        self.known = {name: Known(thing) for name, thing in plan.things.items()}
        self._producers: dict[str, Operation] = {}
        for operation in plan.operations:
            if operation.call in PRODUCERS:
                self._producers.setdefault(operation.things[0], operation)
        self._numbers = itertools.count(len(plan.operations))
        self._running: dict[tuple[int, int], tuple[Attempt, Member]] = {}
        self._tries: dict[int, int] = {}
        #: Operations that are not over: they run, or will be retried.
        self.open: dict[int, Operation] = {}
        #: Objects whose producer runs or will run.
        self._making: set[str] = set()
        #: The framework's own operations that check whether an object still exists.
        self._audits: set[int] = set()

    # Operations.

    def begin(self, operation: Operation, must_be_deleted: bool = False) -> None:
        """Starts an operation, or retries it."""
        self.open[operation.number] = operation
        subject = self.known[operation.things[0]]
        now = time.monotonic()
        number = self._tries[operation.number] = self._tries.get(operation.number, 0) + 1
        if operation.call in PRODUCERS:
            self._making.add(subject.name)
            subject.homes.add(operation.host)
            subject.first_begun = subject.first_begun or now
        elif operation.call in GETS:
            subject.readers.add(operation.host)
        ids = tuple(self.known[name].id for name in operation.things)
        if operation.call == "delete":
            self._note_deletion(operation.things, now)
        attempt = Attempt(number, operation, operation.host, ids, now, must_be_deleted)
        member = self._members[operation.host, operation.slot]
        self._running[operation.number, number] = (attempt, member)
        self._journal.write(f"{attempt} begins, by {member}")
        call = {
            "attempt": [operation.number, number],
            "call": operation.call,
            "ids": ids,
            "timeout": operation.timeout,
            "op": operation.op,
            **operation.details,
        }
        if operation.call in (*GETS, *PUTS, "abandon"):
            call["content"] = to_json(subject.thing.content)
        member.send(call)

    def on_answer(self, outcome: dict[str, Any]) -> None:
        entry = self._running.pop(tuple(outcome["attempt"]), None)
        if entry is not None:
            self._settle(entry[0], outcome)

    def on_gone(self, member: Member) -> None:
        """A client process has ended, and its calls with it."""
        for key, (attempt, by) in list(self._running.items()):
            if by is member:
                del self._running[key]
                message = f"{member} was killed"
                outcome = {"error": VANISHED, "message": message, "began": attempt.began}
                self._settle(attempt, {**outcome, "ended": time.monotonic()})

    def member_of(self, operation: int) -> Member | None:
        """The client process that runs an operation now."""
        return next((by for key, (_, by) in self._running.items() if key[0] == operation), None)

    def hanging(self) -> list[Attempt]:
        """Attempts far beyond their time-outs. These count from the time at which the process takes calls."""
        now = time.monotonic()
        return [
            attempt
            for attempt, member in self._running.values()
            if member.ready_at is not None and now > max(attempt.began, member.ready_at) + attempt.patience
        ]

    def unfinished(self) -> list[str]:
        """The open operations, as text."""
        now = time.monotonic()
        running = [
            f"{attempt} has been running for {now - attempt.began:.1f} s"
            for attempt, _ in self._running.values()
        ]
        at_it = {number for number, _ in self._running}
        return running + [f"to be tried again: {op}" for op in self.open.values() if op.number not in at_it]

    # The framework.

    def on_death(self, host: int) -> None:
        """A daemon has died, and objects that were made there may be lost."""
        for known in self.known.values():
            if host in known.homes and known.made_at is not None:
                self._later(AUDIT_SECONDS, lambda known=known: self.audit(known))  # type: ignore[misc]

    def audit(self, known: Known) -> None:
        """Checks whether the object has a complete copy. If it has none, it is made again."""
        if known.delete_begun is None and known.name not in self._making:
            operation = self._own("locate", "look after a death", known, AUDIT_LIMIT)
            self._audits.add(operation.number)
            self.begin(operation)

    def delete(self, names: Sequence[str], host: int) -> None:
        operation = self._own("delete", "clean up", self.known[names[0]], DELETE_LIMIT, host)
        self.begin(replace(operation, things=tuple(names)))

    def waited_for(self) -> list[str]:
        """The objects of open operations."""
        return list(dict.fromkeys(name for operation in self.open.values() for name in operation.things))

    def remind(self) -> None:
        """Deletes objects again if calls still wait for them, because their deletion may be forgotten."""
        # By id, as some calls wait for a retired name.
        waited = [id for attempt, _ in self._running.values() for id in attempt.ids]
        for known in list(self.known.values()):
            if known.id in waited and known.deleted_at is not None and self._judge.may_be_forgotten(known):
                self.delete([known.name], self._living_home(known, -1))

    def look(self, known: Known, host: int, timeout: float) -> None:
        """A client on ``host`` reads the object, or finds that it is deleted."""
        deleted = known.deleted_at is not None
        role = "read in the end, deleted" if deleted else "read in the end"
        self.begin(self._own("view", role, known, timeout, host), must_be_deleted=deleted)

    def _own(self, call: str, role: str, known: Known, timeout: float, host: int | None = None) -> Operation:
        if host is None:
            host = self._living_home(known, -1)
        return Operation(next(self._numbers), 0.0, call, host, 0, (known.name,), timeout, role=role)

    def _settle(self, attempt: Attempt, outcome: dict[str, Any]) -> None:
        operation, error = attempt.operation, outcome.get("error")
        known = [self.known[name] for name in operation.things]
        seconds = outcome["ended"] - outcome["began"]
        said = f"{error}: {outcome['message']}" if error else "done"
        self._journal.write(f"{attempt} after {seconds:.3f} s: {said}", outcome["ended"])
        self._tally.add(operation.role or operation.call, error or "done", seconds)
        problem = self._judge.problem(attempt, outcome, known)
        if problem:
            raise ChaosFailed([problem], [*operation.things, *attempt.ids])
        if operation.call in PRODUCERS:
            self._making.discard(operation.things[0])
        if error is None:
            self._succeeded(attempt, outcome, known)
        else:
            self._failed(attempt, error, known)

    def _succeeded(self, attempt: Attempt, outcome: dict[str, Any], known: list[Known]) -> None:
        operation = attempt.operation
        self.open.pop(operation.number, None)
        self._tally.bytes += outcome.get("bytes", 0) if operation.call in GETS else 0
        self._tally.checks += outcome.get("checks", 0)
        if operation.call in PRODUCERS and attempt.ids[0] != known[0].id:
            self.known[attempt.ids[0]].last_made = outcome["ended"]
        elif operation.call in PRODUCERS:
            known[0].made_at = known[0].last_made = outcome["ended"]
        elif attempt.must_be_deleted:
            # The judge has accepted that the object exists again. It is deleted again at the end.
            known[0].deleted_at = None
        elif operation.call == "delete":
            self._judge.note_deletion(attempt)
            for one in known:
                one.deleted_at = outcome["ended"]
        elif operation.number in self._audits:
            if not outcome["complete"]:
                self._make_again(known[0])
            elif known[0].made_at is None:
                known[0].made_at = outcome["ended"]

    def _failed(self, attempt: Attempt, error: str, known: list[Known]) -> None:
        operation, subject = attempt.operation, known[0]
        is_audit = operation.number in self._audits
        gone = any(one.delete_begun is not None for one in known) and operation.call != "delete"
        if error == "ObjectLost" and len(known) == 1 and attempt.ids[0] == subject.id:
            self._make_again(subject)
        elif error == "ObjectLost":
            for one in known:
                self.audit(one)
        if gone or not operation.patient or (operation.call in ONCE and not is_audit):
            self.open.pop(operation.number, None)
        elif error == "ObjectExists":
            # An earlier attempt of this reduction has succeeded, or has left its target behind.
            self.open.pop(operation.number, None)
            self.audit(subject)
        elif operation.call in PRODUCERS:
            self.open.pop(operation.number, None)
            self._make_again(subject)
        else:
            if is_audit:
                operation = replace(operation, host=self._living_home(subject, operation.host))
            self._later(RETRY_SECONDS, lambda: self._try_again(operation))

    def _try_again(self, operation: Operation) -> None:
        if operation.call != "delete" and self.known[operation.things[0]].delete_begun is not None:
            self.open.pop(operation.number, None)
        elif self._nodes[operation.host].life in (Life.DOWN, Life.STARTING):
            self._later(RETRY_SECONDS, lambda: self._try_again(operation))
        else:
            self.begin(operation)

    def _make_again(self, known: Known) -> None:
        """Runs the producer again on the next host whose daemon is up."""
        name = known.name
        if name in self._making or known.delete_begun is not None:
            return
        self._making.add(name)
        known.made_at = None
        self._tally.remade += 1
        if known.thing.is_choosy:
            # The last attempt may have succeeded after all. Its name keeps its content and is retired.
            self._retire(known)
        producer = self._producers[name]
        again = replace(producer, host=self._living_home(known, producer.host))
        self.open[again.number] = again
        self._later(RETRY_SECONDS, lambda: self._make(again))

    def _make(self, operation: Operation) -> None:
        self._making.discard(operation.things[0])
        self._try_again(operation)

    def _retire(self, known: Known) -> None:
        old = known.id
        # The old id only remains to be deleted.
        self.known[old] = replace(known, version=known.version, retired=True)
        known.version += 1
        self.delete([old], self._living_home(known, -1))

    def _note_deletion(self, names: Sequence[str], now: float) -> None:
        for known in (self.known[name] for name in names):
            known.delete_begun = known.delete_begun or now
            self._judge.deletes.setdefault(known.id, now)

    def _living_home(self, known: Known, after: int) -> int:
        """The next host after ``after`` in the object's list whose daemon is up, or else simply the next."""
        homes = known.thing.homes
        at = homes.index(after) + 1 if after in homes else 0
        turn = [*homes[at:], *homes[:at]]
        return next((host for host in turn if self._nodes[host].life is Life.UP), turn[0])
