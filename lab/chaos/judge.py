"""Decides which outcomes the faults explain. Any other outcome fails the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.chaos.contents import Folded, mask_of
from lab.chaos.faults import DEADLY, History
from lab.chaos.nodes import DRAIN_SECONDS
from lab.chaos.plan import GETS, REDUCES, Operation, Thing

#: How long after its end a fault may still delay calls: connections are made again, members find each other,
#: and streams end their backoff.
RECOVERY_SECONDS = 10.0

#: Least number of nodes that remember a deletion: the owner and its backup, if there is another node.
DELETERS_MIN = 2

#: Longest time of an undisturbed call. The machine's two cores run all hosts, and links are shared.
SLACK_SECONDS = 3.0
BYTES_PER_SECOND = 1 << 20

#: Time within which a call must fail if its daemon has died or left.
AT_ONCE_SECONDS = 3.0 + DRAIN_SECONDS

#: A call hangs if it has not ended so long after its time-out. The client waits 2 s longer than the node, and
#: the rest is for a busy machine.
HANG_SECONDS = 10.0

#: The process that made the call was killed.
VANISHED = "vanished"


@dataclass
class Attempt:
    """One attempt of an operation."""

    number: int
    operation: Operation
    host: int
    ids: tuple[str, ...]
    began: float
    #: Whether the object must be deleted, even if the outcome is another one.
    must_be_deleted: bool = False

    @property
    def patience(self) -> float:
        """Seconds after which the attempt counts as hanging."""
        hold = self.operation.details.get("hold", 0.0) + self.operation.details.get("seconds", 0.0)
        return self.operation.timeout + hold + HANG_SECONDS

    def __str__(self) -> str:
        return (
            f"op {self.operation.number}.{self.number} host {self.host} {self.operation.call} {self.ids[0]}"
        )


@dataclass
class Known:
    """The framework's knowledge of an object."""

    thing: Thing
    #: Version of the id. A choosy reduction that is made again gets another id, and the old id has an entry
    #: of its own.
    version: int = 0
    retired: bool = False
    #: Time since which a producer's success is known.
    made_at: float | None = None
    #: Time of a producer's last success, even if the object was lost or deleted since.
    last_made: float = 0.0
    #: Hosts that made the object or tried to.
    homes: set[int] = field(default_factory=set)
    #: Hosts that asked for the object and may hold copies.
    readers: set[int] = field(default_factory=set)
    first_begun: float | None = None
    delete_begun: float | None = None
    deleted_at: float | None = None

    @property
    def name(self) -> str:
        """The id of the object."""
        return self.id if self.retired else self.thing.name

    @property
    def id(self) -> str:
        return f"{self.thing.name}.{self.version}" if self.thing.is_choosy else self.thing.name

    def holders(self) -> set[int]:
        """Hosts that may have had the only complete copy."""
        if isinstance(self.thing.content, Folded):
            # The root of the reduction may have been on the host of any source.
            return set(self.thing.homes)
        return self.homes | self.readers


class Judge:
    def __init__(self, history: History, hosts: int) -> None:
        self._history, self._hosts = history, hosts
        #: Time of the first request to delete an id.
        self.deletes: dict[str, float] = {}
        #: Hosts that may have heard of a deletion when it was confirmed, and the time of that.
        self._heard: dict[str, tuple[set[int], float]] = {}
        self._masks: dict[str, tuple[int, str]] = {}
        self._chosen: dict[str, set[int]] = {}

    def problem(self, attempt: Attempt, outcome: dict[str, Any], known: list[Known]) -> str | None:
        """The problem of an outcome, if there is one."""
        error = outcome.get("error")
        if error is None:
            return self._problem_of_success(attempt, outcome, known[0])
        text = f"{error}: {outcome['message']}"
        if error == VANISHED:
            return None
        began, ended = outcome["began"], outcome["ended"]
        excuses: dict[str, Callable[[], bool]] = {
            "ObjectDeleted": lambda: self._was_deleted(attempt, ended),
            "ObjectLost": lambda: self._may_be_lost(attempt, ended, known),
            "NodeUnreachable": lambda: self._daemon_died(attempt.host, outcome),
            "TimedOut": lambda: self._was_delayed(attempt, began, ended, known),
            # A repeated reduction may find the target of the earlier one, complete or not.
            "ObjectExists": lambda: attempt.operation.call in REDUCES and attempt.number > 1,
            # Prefetch may name nodes that are no longer members.
            "BadArgument": lambda: attempt.operation.call == "prefetch" and self._is_troubled(began, ended),
        }
        if attempt.must_be_deleted and error in ("TimedOut", "ObjectLost"):
            # It is enough that the object cannot be got. All nodes that knew of the deletion may have died.
            if self.may_be_forgotten(known[0]):
                return None
            return f"{attempt} after its deletion, which nobody who knew of it has forgotten: {text}"
        if error in excuses and excuses[error]():
            return None
        return f"{attempt}: no fault explains this after {ended - began:.2f} s: {text}"

    def _problem_of_success(self, attempt: Attempt, outcome: dict[str, Any], known: Known) -> str | None:
        if attempt.must_be_deleted:
            return self._problem_of_a_return(attempt, known)
        content, id = known.thing.content, attempt.ids[0]
        if not isinstance(content, Folded):
            return None
        if attempt.operation.call in REDUCES:
            return self._check_sources(attempt, outcome["sources"], content)
        if attempt.operation.call in GETS and content.op == "sum":
            return self._check_mask(attempt, outcome["mask"], content, id)
        return None

    def _problem_of_a_return(self, attempt: Attempt, known: Known) -> str | None:
        """Checks the return of a deleted object.

        This needs a copy that did not hear of the deletion, and the death of all nodes that did.
        """
        deleted = self.deletes[known.id]
        made_later = known.last_made > deleted
        splits = self._history.during(deleted - RECOVERY_SECONDS, known.last_made)
        if made_later and any(disturbance.kind == "split" for disturbance in splits):
            # One side of a split made the object and the other deleted it. The later one of the two holds.
            return None
        some_were_cut_off = len(self._heard[known.id][0]) < self._hosts
        if (made_later or some_were_cut_off) and self.may_be_forgotten(known):
            return None
        return f"{attempt}: the object was deleted, and is there again"

    def _check_sources(self, attempt: Attempt, sources: list[str], content: Folded) -> str | None:
        """Checks that the sources in the result are k of the requested ones."""
        inside = {attempt.ids.index(source) - 1 for source in sources}
        if len(inside) != len(sources) or len(inside) != content.k:
            return f"{attempt}: {content.k} sources were to go in, these did: {', '.join(sources)}"
        return self._compare_chosen(attempt, attempt.ids[0], inside)

    def _check_mask(self, attempt: Attempt, mask: int, content: Folded, id: str) -> str | None:
        """Checks that all readers of an object see the same sources, and that its caller was told these."""
        first, reader = self._masks.setdefault(id, (mask, str(attempt)))
        if first != mask:
            return f"{attempt}: sources {mask:#b} are in {id}, but {first:#b} in what {reader} saw"
        inside = {index for index, part in enumerate(content.parts) if mask & mask_of(part)}
        return self._compare_chosen(attempt, id, inside)

    def _compare_chosen(self, attempt: Attempt, id: str, inside: set[int]) -> str | None:
        if self._chosen.setdefault(id, inside) == inside:
            return None
        return f"{attempt}: sources {sorted(inside)} are in {id}, but {sorted(self._chosen[id])} before"

    # Excuses.

    def _was_deleted(self, attempt: Attempt, ended: float) -> bool:
        return any(self.deletes.get(id, ended + 1) <= ended for id in attempt.ids)

    def _may_be_lost(self, attempt: Attempt, ended: float, known: list[Known]) -> bool:
        holders = set().union(*(one.holders() for one in known))
        begun = [one.first_begun for one in known if one.first_begun is not None]
        if not begun:
            return False
        # In a split, each side loses the objects that only the other side has.
        return any(
            disturbance.may_cost_objects()
            and (
                disturbance.kind == "split"
                or attempt.host in disturbance.hosts
                or holders & {*disturbance.hosts}
            )
            for disturbance in self._history.during(min(begun), ended)
        )

    def _daemon_died(self, host: int, outcome: dict[str, Any]) -> bool:
        """Whether the daemon died since the connection was made. The call must then have failed at once."""
        began, ended = outcome["began"], outcome["ended"]
        return any(
            disturbance.kind in DEADLY
            and host in disturbance.hosts
            and ended - max(began, disturbance.since) <= AT_ONCE_SECONDS
            for disturbance in self._history.during(min(began, outcome["connected"]), ended)
        )

    def note_deletion(self, attempt: Attempt) -> None:
        """Records a confirmed deletion. All nodes that its caller's daemon can reach hear of it."""
        now = time.monotonic()
        heard = set(range(self._hosts))
        for disturbance in self._history.during(now - RECOVERY_SECONDS, now):
            hosts = set(disturbance.hosts)
            if disturbance.kind == "split":
                heard &= hosts if attempt.host in hosts else heard - hosts
            elif disturbance.kind in ("cut-link", *DEADLY) and attempt.host in hosts:
                # The daemon is cut off, or so young that it knows no other yet.
                heard &= hosts
            elif disturbance.kind != "slow-link":
                heard -= hosts - {attempt.host}
        for id in attempt.ids:
            self._heard.setdefault(id, (heard, now))

    def may_be_forgotten(self, known: Known) -> bool:
        """Whether all nodes that heard of the deletion may have died. At least one backup has heard of it."""
        heard, since = self._heard[known.id]
        deadly = [d for d in self._history.during(since, time.monotonic()) if d.kind in DEADLY]
        died = heard.intersection(host for disturbance in deadly for host in disturbance.hosts)
        return len(died) >= min(DELETERS_MIN, len(heard))

    def _was_delayed(self, attempt: Attempt, began: float, ended: float, known: list[Known]) -> bool:
        if self._is_troubled(began, ended):
            return True
        if attempt.operation.call in ("delete", "locate", "prefetch", "put", "fill", "trickle", "abandon"):
            available = began
        else:
            made = [one.made_at for one in known[:1] if one.made_at is not None]
            if not made:
                return True
            available = max(began, *made)
        size = sum(one.thing.content.size for one in known)
        return ended < available + SLACK_SECONDS + size / BYTES_PER_SECOND

    def _is_troubled(self, began: float, ended: float) -> bool:
        return any(True for _ in self._history.during(began - RECOVERY_SECONDS, ended))
