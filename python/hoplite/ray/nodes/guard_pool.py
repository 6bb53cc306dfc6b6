"""A stock of guards for the next puts of this process."""

from __future__ import annotations

import contextlib
import queue
import threading

import ray

from hoplite.errors import NodeUnreachable
from hoplite.ray.nodes.lookup import node_actor_of
from hoplite.timeouts import Deadline

__all__ = ["GuardPool"]

TIMEOUT = 30.0
"""Seconds to wait for guards from the node actor: a round trip, behind whatever else the machine does."""

LOOK_INTERVAL = 1.0
"""Seconds between two looks at whether the thread that fetches them still does."""

CLOSE_TIMEOUT = 1.0
"""Seconds to wait, at the end, for guards that are being fetched: a live node actor takes less."""

FETCHED = 16
"""Guards fetched at once, so that their round trip is not on every object's way."""

LOW = 8
"""Guards left when more are fetched."""


class GuardPool:
    """Fetches guards ahead, from the node actor.

    On a thread of its own: who needs a guard is serialising, and Ray keeps what that has found so far in
    variables of the thread, which a call would lose.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._guards: queue.SimpleQueue[ray.ObjectRef] = queue.SimpleQueue()
        self._low = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def take(self) -> ray.ObjectRef:
        """A guard nobody else has. `NodeUnreachable` if the node actor gives none."""
        with self._starting:
            if self._thread is None:
                self._low.set()
                self._thread = threading.Thread(target=self._supply, name="hoplite-guards", daemon=True)
                self._thread.start()
            thread = self._thread
        deadline = Deadline(TIMEOUT)
        try:
            while True:
                # Looked at first: what its last call brought is here then.
                is_over = deadline.is_over() or not thread.is_alive()
                with contextlib.suppress(queue.Empty):
                    return self._guards.get(timeout=0 if is_over else LOOK_INTERVAL)
                if is_over:
                    raise NodeUnreachable("the actor of this node gives no guards")
        finally:
            if self._guards.qsize() < LOW:
                self._low.set()

    def close(self) -> None:
        """Fetch no more, and let go of those that are left.

        Here, and not on the thread when it ends: Ray ends a process in which a reference goes on one thread
        while Ray is shut down on another.
        """
        self._closed = True
        self._low.set()
        with self._starting:
            if self._thread is not None:
                self._thread.join(CLOSE_TIMEOUT)
        with contextlib.suppress(queue.Empty):
            while True:
                self._guards.get_nowait()

    def _supply(self) -> None:
        try:
            node_actor = node_actor_of(self._node_id, TIMEOUT)
            while True:
                self._low.wait()
                self._low.clear()
                if self._closed:
                    return
                for guard in ray.get(node_actor.guards.remote(FETCHED), timeout=TIMEOUT):
                    self._guards.put(guard)
                # Held no longer than by its taker.
                del guard
        except Exception:
            # Ray or the node actor has gone: who finds the stock empty will say so.
            self._closed = True
