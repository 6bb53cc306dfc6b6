"""A pool of guards for the next puts of this process."""

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
"""Seconds to wait for guards from the node actor: a round trip, behind all other work of the machine."""

LOOK_INTERVAL = 1.0
"""Seconds between two checks that the fetching thread still lives."""

CLOSE_TIMEOUT = 1.0
"""Seconds to wait, at the end, for guards that are being fetched. A live node actor takes less."""

FETCHED = 16
"""Guards fetched at once, so that most puts wait for no round trip."""

LOW = 8
"""Guards left in the pool when more are fetched."""


class GuardPool:
    """Fetches guards ahead of their use, from the node actor.

    It has a thread of its own. A thread that needs a guard is serialising a value, and Ray keeps the
    references found so far in variables of that thread. A call on the same thread would lose them.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._guards: queue.SimpleQueue[ray.ObjectRef] = queue.SimpleQueue()
        self._low = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def take(self) -> ray.ObjectRef:
        """A guard that nobody else has. Raises `NodeUnreachable` if the node actor gives none."""
        with self._starting:
            if self._thread is None:
                self._low.set()
                self._thread = threading.Thread(target=self._supply, name="hoplite-guards", daemon=True)
                self._thread.start()
            thread = self._thread
        deadline = Deadline(TIMEOUT)
        try:
            while True:
                # Checked before the queue: the guards of the thread's last call are in it by then.
                is_over = deadline.is_over() or not thread.is_alive()
                with contextlib.suppress(queue.Empty):
                    return self._guards.get(timeout=0 if is_over else LOOK_INTERVAL)
                if is_over:
                    raise NodeUnreachable("the actor of this node gives no guards")
        finally:
            if self._guards.qsize() < LOW:
                self._low.set()

    def close(self) -> None:
        """Fetch no more guards, and drop those that are left.

        The fetching thread does not drop them when it ends: Ray ends a process in which a reference is
        dropped on one thread while another shuts Ray down.
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
                # Only the taker may keep the guard alive.
                del guard
        except Exception:
            # Ray or the node actor has gone. A caller that finds the pool empty raises an error.
            self._closed = True
