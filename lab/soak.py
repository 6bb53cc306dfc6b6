"""Churn for a long time: nodes leave and return while clients of all nodes make calls. Memory must not grow.

Nodes 0 to 2 stay. Node 3 is killed and node 4 leaves, in turn, and each comes back after a while. Every
client must be able to get an object that was put on a staying node. If such a get times out twice, it is an
error. Objects that were put on the other nodes may be lost with them, so calls for them may fail.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hoplite
import numpy as np

from lab.processes import resident
from lab.report import progress

NODES = 5
STAYING = (0, 1, 2)
COMING = (3, 4)
STORE = "512MiB"

SMALL_BYTES = 1 << 10
MIDDLE_BYTES = 512 << 10

#: Number of objects that each client keeps at a time.
SMALL_KEPT = 100
MIDDLE_KEPT = 8

#: Number of sources of a reduction.
SOURCES = 3

#: Time between the return of one node and the end of the next, and time that a node stays away.
UP_SECONDS = 3.0
AWAY_SECONDS = 2.0

SAMPLE_SECONDS = 5.0

#: Time-out of a call, and of the second attempt of a call that must not fail.
PATIENCE_SECONDS = 20.0
AGAIN_SECONDS = 40.0

#: Time-out of a get of an object that may be lost.
IN_VAIN_SECONDS = 1.0

#: Bytes of a tombstone, which stands for ten minutes. The number of tombstones varies with the speed of the
#: clients in the last ten minutes.
TOMBSTONE_BYTES = 100

#: Largest growth of the private memory of a staying node in the second half, without its tombstones.
GROWTH_BYTES_MAX = 4 << 20


@dataclass
class Found:
    """The result of a soak."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    """Seconds since the start, and the private bytes and status counters of each running node."""
    calls: int = 0
    faults: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Number of accepted failures of calls, by kind."""
    trouble: list[str] = field(default_factory=list)
    growth: dict[str, float] = field(default_factory=dict)
    """Bytes by which each staying node grew in the second half."""


def run(seconds: float) -> Found:
    found = Found()
    over = threading.Event()
    with hoplite.LocalCluster(NODES, store_size=STORE) as cluster:
        crowd = [_Client(cluster, node, over) for node in range(NODES)]
        for client in crowd:
            client.others = crowd
        churn = _Churn(cluster, over)
        runs = [churn.run, *(client.run for client in crowd)]
        threads = [threading.Thread(target=run, daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds and not _trouble(crowd, churn):
            found.samples.append(_sample(cluster, now))
            if len(found.samples) % 12 == 0:
                progress(_told(found.samples[-1], crowd, churn))
            time.sleep(min(SAMPLE_SECONDS, max(seconds - now, 0.0)))
        over.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS + AGAIN_SECONDS)
        hanging = sum(thread.is_alive() for thread in threads)
        found.trouble = _trouble(crowd, churn)
        if hanging:
            found.trouble.append(f"{hanging} clients are still at a call")
    found.calls = sum(client.calls for client in crowd)
    found.faults = churn.faults
    found.errors = dict(sum((client.errors for client in crowd), collections.Counter()))
    found.growth = {str(node): growth(found.samples, str(node)) for node in STAYING}
    found.trouble += [
        f"node {node} grew by {grown / 2**20:.1f} MiB in the second half"
        for node, grown in found.growth.items()
        if grown > GROWTH_BYTES_MAX
    ]
    return found


def growth(samples: Sequence[dict[str, Any]], node: str) -> float:
    """Bytes by which a straight line through the second half rises in it, without tombstones."""
    half = [one for one in samples if one["seconds"] >= samples[-1]["seconds"] / 2 and node in one["nodes"]]
    if len(half) < 2:
        return 0.0
    seconds = np.array([one["seconds"] for one in half])
    private = np.array([_besides_tombstones(one["nodes"][node]) for one in half], np.float64)
    slope = float(np.polyfit(seconds - seconds[0], private, 1)[0])
    return slope * float(seconds[-1] - seconds[0])


def _besides_tombstones(sample: dict[str, int]) -> int:
    return sample["private"] - TOMBSTONE_BYTES * sample["tombstones"]


def _sample(cluster: hoplite.LocalCluster, seconds: float) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    for node in STAYING:
        pid = cluster.pids[node]
        if pid is None:
            raise RuntimeError(f"node {node} has ended: {cluster.log(node)[-2000:]}")
        with hoplite.connect(cluster.sockets[node]) as client:
            status = client.status(timeout=PATIENCE_SECONDS)
        counts = {
            "copies": status.copies,
            "entries": status.entries,
            "tombstones": status.tombstones,
            "clients": status.clients,
        }
        nodes[str(node)] = resident(pid) | counts
    for node in COMING:
        pid = cluster.pids[node]
        if pid is not None and (memory := _resident_if_there(pid)):
            nodes[str(node)] = memory
    return {"seconds": seconds, "nodes": nodes}


def _resident_if_there(pid: int) -> dict[str, int] | None:
    try:
        return resident(pid) if Path("/proc", str(pid)).exists() else None
    except (OSError, KeyError):
        # The process has just ended, or is a zombie.
        return None


def _told(sample: dict[str, Any], crowd: Sequence[_Client], churn: _Churn) -> str:
    private = ", ".join(f"{one['private'] / 2**20:.1f}" for one in sample["nodes"].values())
    calls = sum(client.calls for client in crowd)
    return f"{sample['seconds']:.0f} s: {calls:,} calls, {churn.faults} faults, MiB: {private}"


def _trouble(crowd: Sequence[_Client], churn: _Churn) -> list[str]:
    return [trouble for trouble in (churn.trouble, *(client.trouble for client in crowd)) if trouble]


class _Churn:
    """Lets one node after the other end and come back."""

    def __init__(self, cluster: hoplite.LocalCluster, over: threading.Event) -> None:
        self._cluster, self._over = cluster, over
        self.faults = 0
        self.trouble = ""

    def run(self) -> None:
        try:
            while not self._over.wait(UP_SECONDS):
                node = COMING[self.faults % len(COMING)]
                if node == COMING[0]:
                    self._cluster.kill(node)
                else:
                    self._cluster.stop(node)
                self.faults += 1
                self._over.wait(AWAY_SECONDS)
                self._cluster.restart(node)
                self._cluster.wait_members(NODES, timeout=AGAIN_SECONDS)
        except Exception as error:
            self.trouble = f"coming and going: {type(error).__name__}: {error}"


class _Client:
    """Puts, gets, reduces and deletes on one node. Reconnects when the node has come back."""

    def __init__(self, cluster: hoplite.LocalCluster, node: int, over: threading.Event) -> None:
        self._socket, self._node, self._over = cluster.sockets[node], node, over
        self._random = random.Random(node)
        self._put = 0
        # Objects that it may have made and may not have deleted.
        self._made: set[str] = set()
        self.stays = node in STAYING
        self.others: Sequence[_Client] = ()
        self.small: collections.deque[str] = collections.deque()
        self.middle: collections.deque[str] = collections.deque()
        self.calls = 0
        self.errors: collections.Counter[str] = collections.Counter()
        self.trouble = ""

    def run(self) -> None:
        while not self._over.is_set() and not self.trouble:
            try:
                with hoplite.connect(
                    self._socket, timeout=PATIENCE_SECONDS, default_timeout=PATIENCE_SECONDS
                ) as client:
                    self._forsake(client)
                    while not self._over.is_set() and not self.trouble:
                        self._do_something(client)
                        self.calls += 1
            except (hoplite.NodeUnreachable, hoplite.TimedOut) as error:
                if self.stays:
                    self.trouble = f"node {self._node}: {error}"
                self.errors[type(error).__name__] += 1
                time.sleep(0.1)
            except Exception as error:
                self.trouble = f"node {self._node}: {type(error).__name__}: {error}"

    def _forsake(self, client: hoplite.Client) -> None:
        """Gives up the objects put on a node that has gone. They may be lost, or be on other nodes."""
        self.small.clear()
        self.middle.clear()
        self._delete(client, *self._made)

    def _delete(self, client: hoplite.Client, *names: str) -> None:
        client.delete(names)
        self._made.difference_update(names)

    def _do_something(self, client: hoplite.Client) -> None:
        chosen = self._random.random()
        if chosen < 0.35:
            self._put_one(client, self.small, SMALL_KEPT, np.zeros(SMALL_BYTES // 4, np.float32))
        elif chosen < 0.45:
            self._put_one(client, self.middle, MIDDLE_KEPT, np.zeros(MIDDLE_BYTES // 4, np.float32))
        elif chosen < 0.92:
            self._get_one(client)
        else:
            self._reduce_some(client)

    def _put_one(
        self, client: hoplite.Client, kept: collections.deque[str], most: int, array: np.ndarray
    ) -> None:
        # The oldest object is deleted first.
        if len(kept) >= most:
            self._delete(client, kept.popleft())
        self._put += 1
        # Names are never used again, not even by a client that lost its node.
        name = f"soak-{self._node}-{self._put}"
        self._made.add(name)
        client.put(array, name)
        kept.append(name)

    def _get_one(self, client: hoplite.Client) -> None:
        owner = self._random.choice(self.others)
        kept = owner.small if self._random.random() < 0.8 else owner.middle
        name = self._one_of(kept)
        if name is None:
            return
        try:
            client.get(name, timeout=PATIENCE_SECONDS if owner.stays else IN_VAIN_SECONDS)
        except (hoplite.ObjectDeleted, hoplite.ObjectLost) as error:
            self._excuse(error, owner.stays and isinstance(error, hoplite.ObjectLost), name)
        except hoplite.TimedOut as error:
            if not owner.stays:
                self.errors["got in vain"] += 1
                return
            self.errors[type(error).__name__] += 1
            self._get_again(client, name)

    def _get_again(self, client: hoplite.Client, name: str) -> None:
        try:
            client.get(name, timeout=AGAIN_SECONDS)
        except hoplite.ObjectDeleted:
            pass
        except hoplite.HopliteError as error:
            self.trouble = f"node {self._node} gets {name} for good in vain: {error}"

    def _reduce_some(self, client: hoplite.Client) -> None:
        staying = [one for one in self.others if one.stays]
        sources = {self._one_of(one.middle) for one in self._random.sample(staying, SOURCES)} - {None}
        if not sources:
            return
        self._put += 1
        target = f"soak-sum-{self._node}-{self._put}"
        self._made.add(target)
        try:
            client.reduce([name for name in sources if name], target=target, op="sum").result()
            client.get(target)
        except (hoplite.ObjectDeleted, hoplite.ObjectLost) as error:
            # A source was deleted in the meantime, or the node with the only copy of the sum died.
            self._excuse(error, False, target)
        self._delete(client, target)

    def _excuse(self, error: Exception, wrong: bool, name: str) -> None:
        self.errors[type(error).__name__] += 1
        if wrong:
            self.trouble = f"node {self._node} gets {name}, put on a node that stays: {error}"

    def _one_of(self, names: collections.deque[str]) -> str | None:
        try:
            return names[self._random.randrange(len(names))]
        except (IndexError, ValueError):
            # There is no object, or it was deleted in the meantime.
            return None
