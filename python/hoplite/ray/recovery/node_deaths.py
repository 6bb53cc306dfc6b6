"""Finds values that were lost with a node and that nobody waits for, as Ray does.

A process that waits for a lost object reports it (`loss_reports`). This module finds the others: when a
Hoplite node has gone, it looks for the values that this process's tasks have made.
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
"""Seconds between two failed looks for a value, after which it counts as lost. After the end of a node, the
others need a moment to tell each other what they have. A node may also be silent for a moment only."""

WANTED_PAUSE = 0.25
"""The same pause, for a value that somebody waits for, or will."""

WATCH_SHARE = 0.001
"""Share of a processor's time that the local node may take for one process that watches the members.

The answer grows with their number, and a host has many processes: in large clusters each looks less often."""

RECENT_SECONDS = 5.0
"""Seconds after the end of a node in which looks for its values are frequent."""

LOOK_TIME = 0.5
"""About the most seconds of one look, however many values there are."""

LOCATE_TIMEOUT = 1.0
"""Seconds to ask which nodes have a value."""

RETRY_PAUSE = 5.0
"""Seconds until an unreachable Hoplite node is tried again."""


class NodeDeaths:
    """Watches Hoplite's nodes, and looks for the values of those that have gone."""

    def __init__(self) -> None:
        self._conn: connection.Connection | None = None
        self._members: frozenset[str] = frozenset()
        self._to_look_for: collections.deque[Loss] = collections.deque()
        self._missed: collections.deque[tuple[Loss, float]] = collections.deque()
        """Values that were not found, and since when (`time.monotonic`)."""
        self._not_before = 0.0
        self._next_watch = 0.0
        self._died_at = -math.inf

    def node_died_recently(self) -> bool:
        """Whether a Hoplite node has gone in the last seconds. May be called often."""
        before = time.monotonic()
        if before >= self._next_watch:
            self._watch()
            now = time.monotonic()
            self._next_watch = now + (now - before) / WATCH_SHARE
        return time.monotonic() < self._died_at + RECENT_SECONDS

    def lost_values(self, most: int, reported: Iterable[str]) -> list[Loss]:
        """Values that no node has any more and that this process can have rebuilt. Each is returned once.

        Returns at most `most`. `reported`: the tasks (ids in hex) of losses that somebody waits for.
        """
        if not self._watch():
            return []
        wanted = lineage.needed_for(reported) if self._missed else set()
        return self._look(most, wanted, Deadline(LOOK_TIME))

    def _watch(self) -> bool:
        """Look which nodes there are. Returns whether the local node told."""
        if time.monotonic() < self._not_before:
            return False
        try:
            connection.call(self._update_members, Deadline(LOCATE_TIMEOUT))
        except HopliteError:
            # The local node is being restarted, or there is none.
            self._not_before = time.monotonic() + RETRY_PAUSE
            return False
        return True

    def _update_members(self, conn: connection.Connection) -> None:
        members = frozenset(conn.client.status(timeout=LOCATE_TIMEOUT).members)
        # The local node had gone, too, though it is back.
        is_another = self._conn is not None and self._conn is not conn
        if is_another or not self._members <= members:
            self._to_look_for = collections.deque(_values())
            self._missed.clear()
            self._died_at = time.monotonic()
        self._members, self._conn = members, conn

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
        """Whether no member has it. None: unknown for now."""
        assert self._conn is not None, "the look began with it"
        if lineage.known(loss.origin.task) is None:
            # Its task is forgotten, so no process can rebuild it or wants it.
            return False
        try:
            found = self._conn.client.locations(id_of_hex(loss.guard), timeout=LOCATE_TIMEOUT)
        except (TimedOut, NodeUnreachable):
            # The nodes that know are telling each other.
            return None
        except HopliteError:
            # It was deleted.
            return False
        # Other nodes may not have heard yet which nodes have gone.
        return not any(copy.complete and copy.node in self._members for copy in found.copies)


def _values() -> Iterator[Loss]:
    """The large values in results that this process refers to, of tasks that may run again."""
    results = lineage.results()
    places = global_worker.core_worker.get_local_object_locations(results)
    for result in results:
        # Ray rebuilds the contents of its own store. To read such a result might mean to transfer it.
        if places.get(result, {}).get("node_ids"):
            continue
        try:
            [(data, metadata, *_)] = global_worker.core_worker.get_objects([result], 0)
        except ray.exceptions.GetTimeoutError:
            continue
        # Results of other kinds, such as bytes, are not what Ray's functions that split a value expect.
        if data is None or metadata != OBJECT_METADATA_TYPE_PYTHON:
            continue
        for guard, origin in handles_in(data):
            task = None if origin is None else lineage.known(origin.task)
            if origin is not None and task is not None and task.refusal(origin.part) is None:
                yield Loss(origin, guard)
