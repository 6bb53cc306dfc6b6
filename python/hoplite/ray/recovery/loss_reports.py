"""Reports of lost objects, in Ray's key-value store.

A process that misses an object writes one, and the process that can rebuild the object reads it. Reports
are not calls: the writer may be unpickling, and calls would wait for that.
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
"""Of the kinds of Ray's `ErrorType`, the one that has no reason but an error."""

REASON_CHARS_MAX = 10_000
"""Of why an object is lost: what users' errors say may be long, and is kept for each object for minutes."""


class Loss(NamedTuple):
    """An object that nobody has."""

    origin: Origin
    guard: str
    """In hex: the object's id follows from it."""


class Report(NamedTuple):
    """The latest word of a loss."""

    certain: bool
    """Who reported it knew that no node has it."""
    claimed: bytes
    """By whom it is being made again, and how often that was said so far; empty: by nobody."""


def report(loss: Loss, *, certain: bool, lender: Lender | None = None) -> None:
    """Ask for the object; `certain`: it is not only cut off from here. Twice is as once.

    `lender`: a task that waits for it, and lends what it holds. What was said before stays, unless this says
    more.
    """
    if lender is not None:
        word = json.dumps(lender).encode()
        internal_kv._internal_kv_put(_lender_key(loss), word, overwrite=True, namespace=NAMESPACE)
    internal_kv._internal_kv_put(
        _key(loss), CERTAIN if certain else b"", overwrite=certain, namespace=NAMESPACE
    )


def lender_for(loss: Loss) -> Lender | None:
    """A task that waits for the object, and has started; the last one that said so.

    Or who has lent to that one, which holds nothing itself then.
    """
    lender = _lender(_lender_key(loss))
    return None if lender is None else _lender(_lent_key(lender.task)) or lender


def record_lending(task: str, lender: Lender) -> None:
    """A call, given by its task's id in hex, runs on what `lender` holds."""
    internal_kv._internal_kv_put(
        _lent_key(task), json.dumps(lender).encode(), overwrite=True, namespace=NAMESPACE
    )


def remove_lender(loss: Loss) -> None:
    """That task has ended."""
    internal_kv._internal_kv_del(_lender_key(loss), namespace=NAMESPACE)


def claim(loss: Loss, by: str, times: int) -> None:
    """Say that the object is being made again. Who stops saying so has ended."""
    word = CLAIMED + f"{by} {times}".encode()
    internal_kv._internal_kv_put(_key(loss), word, overwrite=True, namespace=NAMESPACE)


def open_losses() -> dict[Loss, Report]:
    """All that were reported and not settled."""
    found = {}
    for key in internal_kv._internal_kv_list(PREFIX, namespace=NAMESPACE):
        value = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        if value is not None:
            claimed = value.removeprefix(CLAIMED) if value.startswith(CLAIMED) else b""
            found[_loss(key)] = Report(value == CERTAIN, claimed)
    return found


def settle(loss: Loss) -> None:
    """Take the report away: somebody has made the object again, or nobody can."""
    internal_kv._internal_kv_del(_key(loss), namespace=NAMESPACE)
    remove_lender(loss)


def record_reason(id: ObjectId, kind: str, reason: str) -> None:
    """Nobody will make the object again: `kind` is the name of one of Ray's `ErrorType`s.

    What was said first stays: by the process that called the task, before others give it up in its place.
    """
    # Of a traceback, which it may be, the end says most.
    word = f"{kind} {reason[-REASON_CHARS_MAX:]}".encode(errors="backslashreplace")
    internal_kv._internal_kv_put(_reason_key(id), word, overwrite=False, namespace=NAMESPACE)


def record_error(id: ObjectId, error: bytes) -> None:
    """The same, of an object whose second run has ended with `error`, which is pickled."""
    word = b" ".join((RAISED.encode(), base64.b64encode(error)))
    internal_kv._internal_kv_put(_reason_key(id), word, overwrite=False, namespace=NAMESPACE)


def reason_of(id: ObjectId) -> tuple[str, str] | None:
    """The kind and the reason that were said of an object; None: nothing was.

    Of the kind `RAISED` the reason is an error, pickled, in base 64.
    """
    word = internal_kv._internal_kv_get(_reason_key(id), namespace=NAMESPACE)
    if word is None:
        return None
    kind, _, reason = bytes(word).decode().partition(" ")
    return kind, reason


class Guard(NamedTuple):
    """What keeps an object alive that was made again."""

    hex: str
    node: str
    """The Ray node (in hex) of the node actor that owns it,"""
    address: str
    """and where that node actor's Hoplite node listens."""


def record_guard(guard: Guard | None, instead_of: str) -> None:
    """An object is about to be made again, with this guard; its first was `instead_of` (in hex).

    None: what was to be made was not, and there is none but the first.
    """
    key = GUARD_PREFIX + instead_of.encode()
    if guard is None:
        remove_entry(key)
    else:
        internal_kv._internal_kv_put(key, " ".join(guard).encode(), overwrite=True, namespace=NAMESPACE)


def last_guard(first: str) -> Guard | None:
    """That of the last run for an object, given its first; None: it was made once, or long ago."""
    word = internal_kv._internal_kv_get(GUARD_PREFIX + first.encode(), namespace=NAMESPACE)
    return None if word is None else Guard(*word.decode().split(" "))


def expiring_entries() -> dict[bytes, bytes | None]:
    """All reasons, guards, lenders and what they lent, that were said and not forgotten, by their keys."""
    return {
        key: internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        for prefix in (REASON_PREFIX, GUARD_PREFIX, LENDER_PREFIX, LENT_PREFIX)
        for key in internal_kv._internal_kv_list(prefix, namespace=NAMESPACE)
    }


def remove_entry(key: bytes) -> None:
    """Nobody needs it any more."""
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
