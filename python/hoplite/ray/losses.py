"""Reports of lost objects, in Ray's key-value store: from who misses one to who can make it again.

There, and not by calls: who misses an object may be unpickling, and calls would wait for that.
"""

from __future__ import annotations

from typing import NamedTuple

from ray.experimental import internal_kv

from hoplite.ray.names import NAMESPACE
from hoplite.ray.origins import Origin

__all__ = ["Loss", "is_certain", "losses", "report", "settle"]

PREFIX = b"lost/"
CERTAIN = b"certain"


class Loss(NamedTuple):
    """An object that nobody has."""

    origin: Origin
    guard: str
    """In hex: the object's id follows from it."""


def report(loss: Loss, *, certain: bool) -> None:
    """Ask for the object; `certain`: it is not only cut off from here. Twice is as once."""
    value = CERTAIN if certain else b""
    internal_kv._internal_kv_put(_key(loss), value, overwrite=True, namespace=NAMESPACE)


def is_certain(loss: Loss) -> bool:
    """Whether who reported it knew that no node has it."""
    return bool(internal_kv._internal_kv_get(_key(loss), namespace=NAMESPACE) == CERTAIN)


def losses() -> list[Loss]:
    """All that were reported and not settled."""
    return [_loss(key) for key in internal_kv._internal_kv_list(PREFIX, namespace=NAMESPACE)]


def settle(loss: Loss) -> None:
    """Take the report away: somebody makes the object again, or nobody can."""
    internal_kv._internal_kv_del(_key(loss), namespace=NAMESPACE)


def _key(loss: Loss) -> bytes:
    return PREFIX + f"{loss.origin.task}/{loss.origin.part}/{loss.guard}".encode()


def _loss(key: bytes) -> Loss:
    task, part, guard = key.removeprefix(PREFIX).decode().split("/")
    return Loss(Origin(task, int(part)), guard)
