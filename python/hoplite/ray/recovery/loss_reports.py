"""Reports of lost objects, in Ray's key-value store.

A process that misses an object writes a report. The process that can rebuild the object reads it. Reports are
no calls: the writer may be unpickling, and calls would wait for that.
"""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from ray.experimental import internal_kv

from hoplite.ids import ObjectId
from hoplite.ray.nodes.lookup import NAMESPACE
from hoplite.ray.recovery.origins import Origin
from hoplite.ray.recovery.resource_lending import Lender

__all__ = [
    "RAISED",
    "Guard",
    "Loss",
    "Report",
    "claim",
    "expiring_entries",
    "last_guard",
    "lender_for",
    "open_losses",
    "reason_of",
    "record_error",
    "record_guard",
    "record_lending",
    "record_reason",
    "remove_entry",
    "remove_lender",
    "report",
    "settle",
]

PREFIX = b"lost/"
REASON_PREFIX = b"why/"
GUARD_PREFIX = b"guard/"
LENDER_PREFIX = b"lender/"
LENT_PREFIX = b"lent/"
CERTAIN = b"certain"
CLAIMED = b"claimed "

RAISED = "TASK_EXECUTION_EXCEPTION"
"""The member of Ray's `ErrorType` whose reason is an error itself."""

REASON_CHARS_MAX = 10_000
"""Most characters of a stored reason. Messages of users' errors may be long, and each is stored for
minutes."""


class Loss(NamedTuple):
    """An object that no node has."""

    origin: Origin
    guard: str
    """The guard in hex. The object's id follows from it."""


class Report(NamedTuple):
    """The state of a loss report."""

    certain: bool
    """Whether the reporter knew that no node has the object."""
    claimed: bytes
    """The process that claims to rebuild it, and its number of claims so far. Empty: no process does."""


def report(loss: Loss, *, certain: bool, lender: Lender | None = None) -> None:
    """Ask for the object. `certain`: no node has it, and it is not only cut off from here. Idempotent.

    `lender`: a task that waits for it and lends its resources. An earlier report stays unless this one says
    more.
    """
    if lender is not None:
        word = json.dumps(lender).encode()
        internal_kv._internal_kv_put(_lender_key(loss), word, overwrite=True, namespace=NAMESPACE)
    internal_kv._internal_kv_put(
        _key(loss), CERTAIN if certain else b"", overwrite=certain, namespace=NAMESPACE
    )


def lender_for(loss: Loss) -> Lender | None:
    """The last task that reported waiting for the object as a lender, which has started.

    If that task runs on borrowed resources, it is the lender of those.
    """
    lender = _lender(_lender_key(loss))
    return None if lender is None else _lender(_lent_key(lender.task)) or lender


def record_lending(task: str, lender: Lender) -> None:
    """Record that a call, given by its task's id in hex, runs on the resources of `lender`."""
    internal_kv._internal_kv_put(
        _lent_key(task), json.dumps(lender).encode(), overwrite=True, namespace=NAMESPACE
    )


def remove_lender(loss: Loss) -> None:
    """Remove the lender: that task has ended."""
    internal_kv._internal_kv_del(_lender_key(loss), namespace=NAMESPACE)


def claim(loss: Loss, by: str, times: int) -> None:
    """Claim to rebuild the object. A process that stops claiming has ended."""
    word = CLAIMED + f"{by} {times}".encode()
    internal_kv._internal_kv_put(_key(loss), word, overwrite=True, namespace=NAMESPACE)


def open_losses() -> dict[Loss, Report]:
    """All losses that were reported and not settled."""
    found = {}
    for key in internal_kv._internal_kv_list(PREFIX, namespace=NAMESPACE):
        value = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        if value is not None:
            claimed = value.removeprefix(CLAIMED) if value.startswith(CLAIMED) else b""
            found[_loss(key)] = Report(value == CERTAIN, claimed)
    return found


def settle(loss: Loss) -> None:
    """Remove the report: the object is rebuilt, or nobody can rebuild it."""
    internal_kv._internal_kv_del(_key(loss), namespace=NAMESPACE)
    remove_lender(loss)


def record_reason(id: ObjectId, kind: str, reason: str) -> None:
    """Record why nobody will rebuild the object. `kind`: the name of a member of Ray's `ErrorType`.

    The first reason stays. It is that of the process that called the task, before others give up in its
    place.
    """
    # The reason may be a traceback, whose end says most.
    word = f"{kind} {reason[-REASON_CHARS_MAX:]}".encode(errors="backslashreplace")
    internal_kv._internal_kv_put(_reason_key(id), word, overwrite=False, namespace=NAMESPACE)


def record_error(id: ObjectId, error: bytes) -> None:
    """Record that the object's rebuild has ended with `error`, which is pickled."""
    word = b" ".join((RAISED.encode(), base64.b64encode(error)))
    internal_kv._internal_kv_put(_reason_key(id), word, overwrite=False, namespace=NAMESPACE)


def reason_of(id: ObjectId) -> tuple[str, str] | None:
    """The recorded kind and reason for an object. None: nothing was recorded.

    For the kind `RAISED`, the reason is a pickled error in base 64.
    """
    word = internal_kv._internal_kv_get(_reason_key(id), namespace=NAMESPACE)
    if word is None:
        return None
    kind, _, reason = bytes(word).decode().partition(" ")
    return kind, reason


class Guard(NamedTuple):
    """The guard that keeps a rebuilt object alive."""

    hex: str
    node: str
    """The Ray node (in hex) of the node actor that owns it."""
    address: str
    """The address of that node actor's Hoplite node."""


def record_guard(guard: Guard | None, instead_of: str) -> None:
    """Record the guard of an object that is about to be rebuilt. `instead_of`: its first guard (in hex).

    None: the rebuild failed, and only the first guard remains.
    """
    key = GUARD_PREFIX + instead_of.encode()
    if guard is None:
        remove_entry(key)
    else:
        internal_kv._internal_kv_put(key, " ".join(guard).encode(), overwrite=True, namespace=NAMESPACE)


def last_guard(first: str) -> Guard | None:
    """The guard of the object's last rebuild, given its first guard. None: no rebuild is recorded any
    more."""
    word = internal_kv._internal_kv_get(GUARD_PREFIX + first.encode(), namespace=NAMESPACE)
    return None if word is None else Guard(*word.decode().split(" "))


def expiring_entries() -> dict[bytes, bytes | None]:
    """All recorded reasons, guards, lenders and loans, by their keys."""
    return {
        key: internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        for prefix in (REASON_PREFIX, GUARD_PREFIX, LENDER_PREFIX, LENT_PREFIX)
        for key in internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
    }


def remove_entry(key: bytes) -> None:
    """Remove an entry that nobody needs any more."""
    internal_kv._internal_kv_del(key, namespace=NAMESPACE)


def _reason_key(id: ObjectId) -> bytes:
    return REASON_PREFIX + bytes(id).hex().encode()


def _lender(key: bytes) -> Lender | None:
    word = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return None if word is None else Lender(*json.loads(word))


def _lender_key(loss: Loss) -> bytes:
    return LENDER_PREFIX + _key(loss)


def _lent_key(task: str) -> bytes:
    return LENT_PREFIX + task.encode()


def _key(loss: Loss) -> bytes:
    task, part, spec = loss.origin
    return PREFIX + f"{task}/{part}/{loss.guard}/{spec}".encode()


def _loss(key: bytes) -> Loss:
    task, part, guard, spec = key.removeprefix(PREFIX).decode().split("/", maxsplit=3)
    return Loss(Origin(task, int(part), spec), guard)
