"""What a node has taken with it is missed at once by the process that can make it again, as on Ray.

Whoever waits for a lost object reports it (`losses`). This finds those that nobody waits for: when a node of
Hoplite's has gone, the process looks for what its tasks have made.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator

import ray
from ray._private.worker import global_worker

from hoplite.errors import HopliteError, TimedOut
from hoplite.ray import connection, lineage
from hoplite.ray.apart import handles_in
from hoplite.ray.lifetime import id_of_hex
from hoplite.ray.losses import Loss
from hoplite.timeouts import Deadline

__all__ = ["Deaths"]

PAUSE = 1.0
"""Seconds between two looks for a value, both in vain, after which it counts as lost: after the end of a node
the others need a moment to tell each other what they have."""

LOOK_TIME = 0.5
"""Seconds that one look takes about, however many values there are."""

LOCATE_TIMEOUT = 1.0
"""Seconds to ask who has a value."""


class Deaths:
    """The nodes of Hoplite's, and what may have gone with those that have gone."""

    def __init__(self) -> None:
        self._way: connection.Connection | None = None
        self._members: frozenset[str] = frozenset()
        self._to_look_for: collections.deque[Loss] = collections.deque()
        self._missed: collections.deque[tuple[Loss, float]] = collections.deque()
        """Not found, and since when (`time.monotonic`)."""

    def losses(self, most: int) -> list[Loss]:
        """What no node has any more, of what this process can have made again; each is told once.

        No more than `most`. To be called often.
        """
        deadline = Deadline(LOOK_TIME)
        try:
            if connection.call(self._has_any_gone, deadline):
                self._missed.clear()
                self._to_look_for = collections.deque(_values())
            return self._look(most, deadline)
        except HopliteError:
            # Our own node is being started anew.
            return []

    def _has_any_gone(self, way: connection.Connection) -> bool:
        """Also our own, though it may be back."""
        members = frozenset(way.client.status(timeout=LOCATE_TIMEOUT).members)
        is_back = self._way is not None and self._way is not way
        has_gone = is_back or not self._members <= members
        self._members, self._way = members, way
        return has_gone

    def _look(self, most: int, deadline: Deadline) -> list[Loss]:
        lost: list[Loss] = []
        now = time.monotonic()
        while self._missed and len(lost) < most and not deadline.is_over():
            loss, since = self._missed[0]
            if since + PAUSE > now:
                break
            if _is_gone(loss):
                lost.append(loss)
            self._missed.popleft()
        while self._to_look_for and not deadline.is_over():
            if _is_gone(self._to_look_for[0]):
                self._missed.append((self._to_look_for[0], now))
            self._to_look_for.popleft()
        return lost


def _is_gone(loss: Loss) -> bool:
    """Raises `TimedOut`: those who know are telling each other."""
    id = id_of_hex(loss.guard)
    try:
        found = connection.call(lambda way: way.client.locations(id, timeout=LOCATE_TIMEOUT))
    except TimedOut:
        raise
    except HopliteError:
        # It was deleted.
        return False
    return not any(copy.complete for copy in found.copies)


def _values() -> Iterator[Loss]:
    """The large values in results that this process refers to, of tasks that may run again."""
    results = lineage.results()
    places = global_worker.core_worker.get_local_object_locations(results)
    for result in results:
        # What Ray has in its store, it makes again itself; and to read it might mean to bring it.
        if places.get(result, {}).get("node_ids"):
            continue
        try:
            [(data, *_)] = global_worker.core_worker.get_objects([result], 0)
        except ray.exceptions.GetTimeoutError:
            continue
        for guard, origin in handles_in(data) if data is not None else ():
            task = None if origin is None else lineage.known(origin.task)
            if origin is not None and task is not None and task.refusal(origin.part) is None:
                yield Loss(origin, guard)
