"""Checks now and then whether any node still has the objects that this process waits for.

Hoplite tells a waiting get that its object is lost, unless all nodes that knew of the object died too. Then
the object seems never to have existed, and the get waits on. This module knows that it existed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError
from hoplite.ray.nodes import connection
from hoplite.ray.recovery.loss_reports import Loss, record_reason, remove_lender, report
from hoplite.ray.recovery.resource_lending import Lender, Waiter

if TYPE_CHECKING:
    from hoplite.ray.values.handles import Handle

__all__ = ["awaiting", "report_missing"]

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks for an awaited object."""

LOOKS_MIN = 2
"""Looks in a row that find no copy, until the object's task is asked to rebuild it. After the end of a node,
the others need a moment to tell each other what they have."""

LOOKS_MAX = 20
"""Looks in a row that find no copy, until an object without a task is given up. Giving up deletes it, even if
it is only cut off from here. So it takes longer than the 14 s after which Ray, by default, declares a silent
node dead."""


@dataclass(slots=True, eq=False)
class _Awaited:
    handle: Handle
    waiter: Waiter
    is_reported: bool = False
    since: float = field(default_factory=time.monotonic)
    failed_looks: int = 0


_awaited: set[_Awaited] = set()
_lock = threading.Lock()
_thread: threading.Thread | None = None


@contextlib.contextmanager
def awaiting(*handles: Handle) -> Iterator[None]:
    """Inside, this thread waits for the objects of `handles`."""
    waiter = Waiter.here()
    awaited = [_Awaited(handle, waiter) for handle in handles]
    _awaited.update(awaited)
    _start()
    try:
        yield
    finally:
        _awaited.difference_update(awaited)
        _remove_lenders(awaited)


def report_missing(handle: Handle, *, certain: bool, lender: Lender | None = None) -> None:
    """Report that no node has the object, or none that is reachable from here: its task shall rebuild it.

    `lender`: the task that waits for the object, if it lends its resources.
    """
    if handle.origin is not None:
        for awaited in _awaited.copy():
            awaited.is_reported |= awaited.handle is handle
        report(Loss(handle.origin, handle.guard.hex()), certain=certain, lender=lender)


def _remove_lenders(awaited: list[_Awaited]) -> None:
    for ended in awaited:
        if ended.is_reported and ended.handle.origin is not None:
            with contextlib.suppress(Exception):
                remove_lender(Loss(ended.handle.origin, ended.handle.guard.hex()))


def _start() -> None:
    global _thread
    if _thread is None:
        with _lock:
            if _thread is None:
                _thread = threading.Thread(target=_watch, name="hoplite-watch", daemon=True)
                _thread.start()


def _watch() -> None:
    while True:
        time.sleep(LOOK_INTERVAL)
        # Called, not inlined: this frame would hold the last awaited object until the next look.
        _look_around()


def _look_around() -> None:
    before = time.monotonic() - LOOK_INTERVAL
    for awaited in [awaited for awaited in _awaited.copy() if awaited.since < before]:
        try:
            _look(awaited)
        except HopliteError as error:
            # Deleted, or the node is being restarted: the waiting get gets the same error.
            logger.debug("looking for %s again: %s", awaited.handle.id, error)
        except Exception:
            logger.exception("looking for %s again", awaited.handle.id)


def _look(awaited: _Awaited) -> None:
    client = connection.here().client
    if any(copy.complete for copy in client.locations(awaited.handle.id, timeout=LOOK_INTERVAL).copies):
        awaited.failed_looks = 0
        return
    awaited.failed_looks += 1
    if awaited.handle.origin is not None:
        if awaited.failed_looks >= LOOKS_MIN:
            report_missing(awaited.handle, certain=False, lender=awaited.waiter.lender())
    elif awaited.failed_looks >= LOOKS_MAX:
        logger.warning("nobody has %s, and no task can make it", awaited.handle.id)
        record_reason(awaited.handle.id, "OBJECT_LOST", "no node has it, and no task makes it")
        client.delete(awaited.handle.id, timeout=LOOK_INTERVAL)
