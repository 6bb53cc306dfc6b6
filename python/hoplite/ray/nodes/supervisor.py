"""The actor that keeps a Hoplite node beside every Ray node. It gives up losses that no process claims."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite.errors import NodeUnreachable
from hoplite.ids import TOMBSTONE_SECONDS
from hoplite.ray.nodes.lookup import NAMESPACE, node_actor_name
from hoplite.ray.nodes.node_actor import CONCURRENCY_MAX, NodeActor
from hoplite.ray.recovery.loss_reports import Loss, expiring_entries, open_losses, remove_entry
from hoplite.ray.recovery.rebuilder import give_up
from hoplite.timeouts import Deadline

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the cluster. A Ray node that joins waits that long for its Hoplite node."""

NODE_ACTOR_TIMEOUT = 60.0
"""Seconds for a node actor's process and its node to start, on a machine that starts a dozen of them."""

STOP_TIMEOUT = 5.0
"""Seconds for a node to end gracefully."""

STARTS_AT_ONCE = 16

FAILURES_MAX = 3
"""Failures in a row after which waiting callers get an error. A node that fails at once gets there in as many
seconds."""

LOSSES_INTERVAL = 2.5
"""Seconds between two reads of the loss reports. The head of the cluster must answer each."""

CLAIM_TIMEOUT = 10.0
"""Seconds for the process that called a task to claim its lost results."""


ENTRY_SECONDS = TOMBSTONE_SECONDS
"""Seconds for which the reason of a final loss is stored: as long as nodes remember a deletion. The last
guard of a rebuilt object is stored as long, because Ray notices the death of a process far sooner."""


@dataclass(slots=True)
class _Started:
    actor: Any
    address: str
    end: ray.ObjectRef
    """The result of the call `run`, which ends with the node."""


class Supervisor:
    """Keeps one node actor on each live Ray node. After a restart it uses the node actors that it finds."""

    def __init__(self, store_size: str | None) -> None:
        self._store_size = store_size
        self._changed = threading.Condition()
        self._started: dict[str, _Started] = {}
        self._failures: dict[str, list[str]] = {}
        """The last failures of each live Ray node whose Hoplite node does not start."""
        self._losses: dict[Loss, tuple[bytes, float]] = {}
        """Open losses: the last claim to rebuild each, and the time (`time.monotonic`) since when it
        stands."""
        self._entries: dict[tuple[bytes, bytes | None], float] = {}
        """Entries of the key-value store that expire, by key and value, and when each was first seen
        (`time.monotonic`)."""
        self._stopping = False
        self._watching = threading.Thread(target=self._watch, name="hoplite-supervisor", daemon=True)
        self._watching.start()

    @ray.method(max_task_retries=-1)  # type: ignore[untyped-decorator]
    def addresses(self, timeout: float) -> dict[str, str]:
        """The address ("host:port") of each live Ray node's Hoplite node, by the Ray node's id in hex.

        Waits until each has one. Raises `NodeUnreachable` if some have none after `timeout` seconds, or fail
        to start again and again.
        """
        deadline = Deadline(timeout)
        with self._changed:
            while missing := _alive() - self._started.keys():
                failures = {node: self._failures.get(node, []) for node in missing}
                if deadline.is_over() or max(map(len, failures.values())) >= FAILURES_MAX:
                    whys = [f"{node}: {[*why, 'no answer yet'][0]}" for node, why in failures.items()]
                    raise NodeUnreachable(f"no Hoplite node starts on Ray node {'; '.join(whys)}")
                self._changed.wait(LOOK_INTERVAL)
            alive = _alive()
            return {node: started.address for node, started in self._started.items() if node in alive}

    def stop(self) -> None:
        """End all nodes, and start none any more."""
        self._stopping = True
        # The thread checks `_stopping` this often.
        self._watching.join(2 * LOOK_INTERVAL + STOP_TIMEOUT)
        stopping = [started.actor.stop.remote(STOP_TIMEOUT) for started in self._started.values()]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=2 * STOP_TIMEOUT)
        for started in self._started.values():
            ray.kill(started.actor)

    def _watch(self) -> None:
        next_losses = 0.0
        with ThreadPoolExecutor(STARTS_AT_ONCE, thread_name_prefix="hoplite-start") as threads:
            while not self._stopping:
                try:
                    self._look(threads)
                    if time.monotonic() >= next_losses:
                        next_losses = time.monotonic() + LOSSES_INTERVAL
                        self._give_up_losses()
                except Exception:
                    logger.exception("looking again in %s s", LOOK_INTERVAL)
                time.sleep(LOOK_INTERVAL)

    def _look(self, threads: ThreadPoolExecutor) -> None:
        alive = _alive()
        self._forget(alive)
        new = sorted(alive - self._started.keys())
        if new and not self._started:
            # The first node starts alone, and the others join it.
            self._start(new.pop(0))
        if self._started:
            list(threads.map(self._start, new))

    def _forget(self, alive: Collection[str]) -> None:
        """Drop the nodes that have ended, or whose Ray node has."""
        with self._changed:
            self._failures = {node: why for node, why in self._failures.items() if node in alive}
        ends = {started.end: node for node, started in self._started.items()}
        ended, _ = ray.wait(list(ends), num_returns=len(ends), timeout=0) if ends else ([], [])
        for node in {ends[end] for end in ended} | (self._started.keys() - set(alive)):
            logger.warning("the Hoplite node of Ray node %s has ended", node)
            with self._changed:
                started = self._started.pop(node)
            if node not in alive:
                # While its Ray node lives, Ray restarts the actor, and `_start` finds it.
                ray.kill(started.actor)

    def _give_up_losses(self) -> None:
        """Give up losses without a claim for `CLAIM_TIMEOUT`: the process that could rebuild them has
        ended."""
        now, before = time.monotonic(), self._losses
        self._losses = {}
        for loss, word in open_losses().items():
            claimed, since = before.get(loss, (b"", now))
            self._losses[loss] = (word.claimed, now if word.claimed != claimed else since)
        old = [loss for loss, (_, since) in self._losses.items() if now - since > CLAIM_TIMEOUT]
        if old:
            give_up(old, f"no process has answered for them for {CLAIM_TIMEOUT} s", "OWNER_DIED")
        self._expire_entries(now)

    def _expire_entries(self, now: float) -> None:
        self._entries = {word: self._entries.get(word, now) for word in expiring_entries().items()}
        for (key, _), since in self._entries.items():
            if now - since > ENTRY_SECONDS:
                remove_entry(key)

    def _start(self, node: str) -> None:
        actor = (
            ray.remote(NodeActor)
            .options(
                name=node_actor_name(node),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_concurrency=CONCURRENCY_MAX,
                max_restarts=-1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(self._store_size)
        )
        try:
            address = self._address_of(actor)
        except Exception as error:
            logger.warning("no Hoplite node on Ray node %s: %s", node, error)
            ray.kill(actor)
            with self._changed:
                failures = [*self._failures.get(node, []), _without_traceback(str(error))]
                self._failures[node] = failures[-FAILURES_MAX:]
                self._changed.notify_all()
            return
        with self._changed:
            self._started[node] = _Started(actor, address, actor.run.remote())
            self._failures.pop(node, None)
            self._changed.notify_all()

    def _address_of(self, node_actor: Any) -> str:
        """The node's address. Waits until it has started, or until the supervisor stops."""
        address = node_actor.address.remote()
        deadline = Deadline(NODE_ACTOR_TIMEOUT)
        while not ray.wait([address], timeout=LOOK_INTERVAL)[0]:
            if self._stopping:
                raise NodeUnreachable("all nodes are being stopped")
            if deadline.is_over():
                raise NodeUnreachable(f"it did not start within {NODE_ACTOR_TIMEOUT} s")
        started: str = ray.get(address)
        return started


def _without_traceback(said: str) -> str:
    """The class and message of an actor's error, without the traceback before them."""
    found = re.search(r"^(\w+\.)*\w+: .*", said, re.MULTILINE | re.DOTALL)
    return found[0] if found else said


def _alive() -> set[str]:
    """The ids of Ray's live nodes."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
