"""Finds values that were lost with a node and that nobody waits for, as Ray does.

A process that waits for a lost object reports it (`losses`). This module finds the others: when a Hoplite
node has gone, it looks for the values that this process's tasks have made.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Iterable, Iterator

import ray
from ray._private.ray_constants import OBJECT_METADATA_TYPE_PYTHON
from ray._private.worker import global_worker

from hoplite.errors import HopliteError, NodeUnreachable, TimedOut
from hoplite.ray.nodes import connection
from hoplite.ray.nodes.guards import id_of_hex
from hoplite.ray.recovery import lineage
from hoplite.ray.recovery.loss_reports import Loss
from hoplite.ray.values.handle_unpickler import handles_in
from hoplite.timeouts import Deadline

__all__ = ["NodeDeaths"]

PAUSE = 2.0
"""Seconds between two looks for a value, both in vain, after which it counts as lost: after the end of a node
the others need a moment to tell each other what they have, and a node may be silent for a moment only."""

WANTED_PAUSE = 0.25
"""The same, for what somebody waits for, or will."""

RECENT_SECONDS = 5.0
"""Seconds after the end of a node in which what went with it is looked for often."""

LOOK_TIME = 0.5
"""Seconds that one look takes about, however many values there are."""

LOCATE_TIMEOUT = 1.0
"""Seconds to ask who has a value."""

RETRY_PAUSE = 5.0
"""Seconds until a node of Hoplite's is looked for again that was not to be had."""


class NodeDeaths:
    """The nodes of Hoplite's, and what may have gone with those that have gone."""

    def __init__(self) -> None:
        self._way: connection.Connection | None = None
        self._members: frozenset[str] = frozenset()
        self._to_look_for: collections.deque[Loss] = collections.deque()
        self._missed: collections.deque[tuple[Loss, float]] = collections.deque()
        """Not found, and since when (`time.monotonic`)."""
        self._not_before = 0.0
        self._died_at = -math.inf

    def node_died_recently(self) -> bool:
        """Whether a node of Hoplite's has gone in the last seconds. To be called often: it costs little."""
        self._watch()
        return time.monotonic() < self._died_at + RECENT_SECONDS

    def lost_values(self, most: int, reported: Iterable[str]) -> list[Loss]:
        """Values that no node has any more and that this process can have made again; each is returned once.

        Returns at most `most`. `reported`: the tasks (ids in hex) of losses that somebody waits for.
        """
        if not self._watch():
            return []
        wanted = lineage.needed_for(reported) if self._missed else set()
        return self._look(most, wanted, Deadline(LOOK_TIME))

    def _watch(self) -> bool:
        """See which nodes there are; whether that was to be seen."""
        if time.monotonic() < self._not_before:
            return False
        try:
            connection.call(self._see_who_is_there, Deadline(LOCATE_TIMEOUT))
        except HopliteError:
            # Our own node is being started anew, or there is none.
            self._not_before = time.monotonic() + RETRY_PAUSE
            return False
        return True

    def _see_who_is_there(self, way: connection.Connection) -> None:
        members = frozenset(way.client.status(timeout=LOCATE_TIMEOUT).members)
        # Our own node has gone, too, though it is back.
        is_another = self._way is not None and self._way is not way
        if is_another or not self._members <= members:
            self._to_look_for = collections.deque(_values())
            self._missed.clear()
            self._died_at = time.monotonic()
        self._members, self._way = members, way

    def _look(self, most: int, wanted: set[str], deadline: Deadline) -> list[Loss]:
        lost: list[Loss] = []
        for _ in range(len(self._missed)):
            if len(lost) >= most or deadline.is_over():
                break
            loss, since = self._missed.popleft()
            now = time.monotonic()
            pause = WANTED_PAUSE if loss.origin.task in wanted else PAUSE
            if now < since + pause:
                self._missed.append((loss, since))
                continue
            match self._is_gone(loss):
                case None:
                    self._missed.append((loss, now))
                case True:
                    lost.append(loss)
        for _ in range(len(self._to_look_for)):
            if deadline.is_over():
                break
            loss = self._to_look_for.popleft()
            match self._is_gone(loss):
                case None:
                    self._to_look_for.append(loss)
                case True:
                    self._missed.append((loss, time.monotonic()))
        return lost

    def _is_gone(self, loss: Loss) -> bool | None:
        """Whether no member has it; None: that is not to be told now."""
        assert self._way is not None, "the look began with it"
        if lineage.known(loss.origin.task) is None:
            # Nobody can make it again, or wants it.
            return False
        try:
            found = self._way.client.locations(id_of_hex(loss.guard), timeout=LOCATE_TIMEOUT)
        except (TimedOut, NodeUnreachable):
            # Those who know are telling each other.
            return None
        except HopliteError:
            # It was deleted.
            return False
        # Others may not have heard yet who has gone.
        return not any(copy.complete and copy.node in self._members for copy in found.copies)


def _values() -> Iterator[Loss]:
    """The large values in results that this process refers to, of tasks that may run again."""
    results = lineage.results()
    places = global_worker.core_worker.get_local_object_locations(results)
    for result in results:
        # What Ray has in its store, it makes again itself; and to read it might mean to bring it.
        if places.get(result, {}).get("node_ids"):
            continue
        try:
            [(data, metadata, *_)] = global_worker.core_worker.get_objects([result], 0)
        except ray.exceptions.GetTimeoutError:
            continue
        # Of other kinds, as bytes are, Ray's functions that cut a value into parts make nonsense, or worse.
        if data is None or metadata != OBJECT_METADATA_TYPE_PYTHON:
            continue
        for guard, origin in handles_in(data):
            task = None if origin is None else lineage.known(origin.task)
            if origin is not None and task is not None and task.refusal(origin.part) is None:
                yield Loss(origin, guard)
