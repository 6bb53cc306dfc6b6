"""An object lives as long as any Ray reference to its guard.

A guard is an empty Ray object inside the value that stands for the Hoplite object. Ray counts its references,
nested and borrowed ones too, and tells its owner when none is left. The owner is the actor of the node where
the object was put. So an object outlives the worker that made it, and ends with the node, as its pinned copy
does. The object's id follows from the guard, so nothing needs to be registered.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray._private.worker import global_worker

from hoplite.client import Client
from hoplite.errors import Aborted, NodeUnreachable
from hoplite.ids import ObjectId
from hoplite.ray.nodes.lookup import address_of_node
from hoplite.ray.recovery import loss_reports

__all__ = ["Guards", "id_of", "id_of_hex"]

logger = logging.getLogger(__name__)

DELETE_TIMEOUT = 30.0
"""Seconds after which a delete without an answer is sent again."""

RETRY_INTERVAL = 1.0
"""Seconds until a failed delete is tried again, for whatever reason it failed."""

BATCH_MAX = 1000
"""Objects deleted by one call at most."""


def id_of(guard: ray.ObjectRef) -> ObjectId:
    """The Hoplite object that `guard` keeps alive."""
    return id_of_hex(guard.hex())


def id_of_hex(guard: str) -> ObjectId:
    """The Hoplite object whose first guard this is, given in hex."""
    return ObjectId.from_name(f"ray {guard}")


class Guards:
    """Makes guards. Deletes an object when nobody refers to its guard any more."""

    def __init__(self, client: Client, empty_values: Any, node: str, address: str) -> None:
        """Guards of the actor of this Ray `node` (in hex), whose Hoplite node listens at `address`.

        `empty_values`: a method of this actor itself that returns a given number of empty values.
        """
        self._client = client
        self._place = node, address
        self._empty_values = empty_values
        self._ended: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._replaced: dict[bytes, str] = {}
        """The object's first guard, by the guard that replaced it after its node actor had ended."""
        threading.Thread(target=self._delete_ended, name="hoplite-delete", daemon=True).start()

    async def make(self, count: int) -> list[ray.ObjectRef]:
        """New guards. A caller may drop guards for which nothing was put."""
        return await self._new([None] * count)

    async def replace(self, ended: Sequence[str]) -> list[ray.ObjectRef]:
        """New guards, one for the object of each guard that has `ended` (in hex)."""
        return await self._new(ended)

    async def _new(self, ended: Sequence[str | None]) -> list[ray.ObjectRef]:
        # They are results of a call, which Ray keeps in this process. A put would use Ray's object store: for
        # each guard a millisecond of two processes' time.
        results = self._empty_values.options(num_returns=len(ended)).remote(len(ended))
        guards: list[ray.ObjectRef] = results if isinstance(results, list) else [results]
        for guard, before in zip(guards, ended, strict=True):
            if before is not None:
                self._replaced[guard.binary()] = before
                loss_reports.record_guard(loss_reports.Guard(guard.hex(), *self._place), instead_of=before)
            # Called on a thread of Ray's that must not be blocked.
            global_worker.core_worker.add_object_out_of_scope_callback(guard, self._ended.put)
        # All come with one answer. A process that has a guard before that asks this one for it.
        await guards[-1]
        return guards

    def _delete_ended(self) -> None:
        while True:
            ended = [self._ended.get()]
            while len(ended) < BATCH_MAX and not self._ended.empty():
                ended.append(self._ended.get())
            try:
                ended = self._unreferenced(ended)
                ids = [id_of_hex(self._replaced.get(guard, guard.hex())) for guard in ended]
                self._client.delete(ids, timeout=DELETE_TIMEOUT)
            except (NodeUnreachable, Aborted):
                # The node has ended with its objects, and this actor will end too.
                return
            except Exception:
                # An error of the node, or of Ray's key-value store.
                logger.warning("deleting %d objects: trying again", len(ended), exc_info=True)
                for guard in ended:
                    self._ended.put(guard)
                time.sleep(RETRY_INTERVAL)
            else:
                for guard in ended:
                    self._replaced.pop(guard, None)

    def _unreferenced(self, ended: list[bytes]) -> list[bytes]:
        """The guards among `ended` whose end means that nobody refers to their objects any more.

        The others replaced an earlier guard and ended with the process that rebuilt the object. Then the
        object is still lost, or another run has rebuilt it. Ray may report such an end late or early.
        """
        replaced = self._replaced.keys() & ended
        if not replaced:
            return ended
        lost = {loss.guard for loss in loss_reports.open_losses()}
        stale = set()
        for guard in replaced:
            first = self._replaced[guard]
            last = loss_reports.last_guard(first)
            if first in lost or (last is not None and last.hex != guard.hex() and _is_kept(last)):
                stale.add(guard)
        for guard in stale:
            del self._replaced[guard]
        return [guard for guard in ended if guard not in stale]


def _is_kept(guard: loss_reports.Guard) -> bool:
    """Whether the node actor that owns the guard lives. A guard of a dead actor means nothing any more."""
    alive = any(node["Alive"] and node["NodeID"] == guard.node for node in ray.nodes())
    return alive and address_of_node(guard.node) == guard.address
