"""What tests of failures share: writers as slow as the test wants, and who owns which name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hoplite
import numpy as np
import numpy.typing as npt
from conftest import eventually

MIB = 1 << 20

SIZE = 32 * MIB
"""Objects are this large where a fault is to hit them on their way: half of it fits no socket's buffers."""

TIMEOUT = 60.0
"""Seconds nothing in these tests comes near; whatever reaches them hangs."""

GRAIN = MIB // 4
"""What a relay may hold back while more is to come: it forwards no less at a time."""

SOON = 5.0
"""Seconds within which a failure must be told: milliseconds as a rule. But an owner that has lately
seen members come or go waits two seconds for what others hold before it calls an object lost, these
clusters are young, and the machine may be busy."""

Bytes = npt.NDArray[np.uint8]


class SlowPut:
    """An object that is being written: as much of it as the test has said so far."""

    def __init__(self, client: hoplite.Client, name: str, content: npt.NDArray[Any]) -> None:
        """`content` is one-dimensional."""
        self._creation = client.create(name, content.shape, content.dtype, timeout=TIMEOUT)
        self._content = content.view(np.uint8)
        self._done = 0

    def write(self, upto: int) -> None:
        """Go on until `upto` bytes are there."""
        self._creation.array.view(np.uint8)[self._done : upto] = self._content[self._done : upto]
        self._creation.advance(upto)
        self._done = upto

    def finish(self) -> None:
        self.write(self._content.size)
        self._creation.seal(timeout=TIMEOUT)
        # It would keep its memory.
        del self._creation


def has_received(client: hoplite.Client, size: int) -> None:
    """Wait until `client`'s node has received as many bytes from others."""
    eventually(lambda: client.status(timeout=TIMEOUT).received_bytes >= size, f"{size} bytes arrive")


def has_folded(client: hoplite.Client, size: int) -> None:
    """Wait until `client`'s node has folded as many bytes."""
    eventually(lambda: client.status(timeout=TIMEOUT).folded_bytes >= size, f"{size} bytes are folded")


def holders(client: hoplite.Client, name: str) -> set[str]:
    """The nodes that have `name` completely, as its directory owner knows."""
    return {copy.node for copy in client.locations(name, timeout=TIMEOUT).copies if copy.complete}


def is_known(client: hoplite.Client, name: str, copies: int) -> None:
    """Wait until the directory knows of so many copies of `name`, complete or not."""
    eventually(
        lambda: len(client.locations(name, timeout=TIMEOUT).copies) >= copies, f"{copies} copies of {name}"
    )


def names_owned_by(clients: Sequence[hoplite.Client], node: int, count: int = 1) -> list[str]:
    """Names whose directory entries lie with `node`; nothing else may go on meanwhile."""
    candidates = (f"owned {number} {time.monotonic_ns()}" for number in itertools.count())
    return list(itertools.islice((name for name in candidates if owner_of(clients, name) == node), count))


def owner_of(clients: Sequence[hoplite.Client], name: str) -> int:
    """Which node has the directory entry of `name`, which nobody has put yet.

    Found out by announcing it and looking whose number of entries grows.
    """

    def entries() -> list[int]:
        return [client.status(timeout=TIMEOUT).entries for client in clients]

    before = entries()
    creation = clients[0].create(name, MIB, np.uint8, timeout=TIMEOUT)
    eventually(lambda: sum(entries()) > sum(before), "somebody has the entry")
    after = entries()
    creation.abort()
    eventually(lambda: entries() == before, "the entry is gone again")
    return next(i for i in range(len(clients)) if after[i] > before[i])


def bytes_of(seed: int, size: int = SIZE) -> Bytes:
    """Different for each seed, and at each place: bytes that are mixed up do not go unseen."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@dataclass(frozen=True)
class Usage:
    """What a node has in hand besides finished copies: nothing of it may stay behind."""

    used_bytes: int
    copies: int
    transfers: int
    reductions: int


def usage(client: hoplite.Client) -> Usage:
    status = client.status(timeout=TIMEOUT)
    return Usage(status.used_bytes, status.copies, status.transfers, status.reductions)


def returns_to(before: Sequence[Usage], clients: Sequence[hoplite.Client]) -> None:
    """Wait until each client's node has no more in hand than it had `before`."""
    eventually(lambda: [usage(client) for client in clients] == list(before), f"back to {before}")
