"""Helpers for tests of failures: slow writers, and the directory owners of names."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import hoplite
import numpy as np
import numpy.typing as npt
from conftest import MIB, TIMEOUT, eventually

SIZE = 32 * MIB
"""Size of objects that a fault hits under way. Half of it is larger than the buffers of a socket."""

GRAIN = MIB // 4
"""Most bytes that a relay may hold back while more are expected. It forwards at least so many at a time."""

SOON = 5.0
"""Seconds within which a failure must be reported. Normally it takes milliseconds. An owner that has lately
seen members join or leave waits two seconds for inventories before it declares an object lost. These clusters
are young, and the machine may be busy."""

Bytes = npt.NDArray[np.uint8]


class SlowPut:
    """An object that is being written, as far as the test has asked for."""

    def __init__(self, client: hoplite.Client, name: str, content: npt.NDArray[Any]) -> None:
        """`content` is one-dimensional."""
        self._creation = client.create(name, content.shape, content.dtype, timeout=TIMEOUT)
        self._content = content.view(np.uint8)
        self._done = 0

    def write(self, upto: int) -> None:
        """Write on until `upto` bytes are written."""
        self._creation.array.view(np.uint8)[self._done : upto] = self._content[self._done : upto]
        self._creation.advance(upto)
        self._done = upto

    def finish(self) -> None:
        self.write(self._content.size)
        self._creation.seal(timeout=TIMEOUT)
        # The creation would keep its memory.
        del self._creation


def has_received(client: hoplite.Client, size: int) -> None:
    """Wait until `client`'s node has received `size` bytes from other nodes."""
    eventually(lambda: client.status(timeout=TIMEOUT).received_bytes >= size, f"{size} bytes arrive")


def has_folded(client: hoplite.Client, size: int) -> None:
    """Wait until `client`'s node has folded `size` bytes."""
    eventually(lambda: client.status(timeout=TIMEOUT).folded_bytes >= size, f"{size} bytes are folded")


def holders(client: hoplite.Client, name: str) -> set[str]:
    """The nodes with a complete copy of `name`, according to its directory owner."""
    return {copy.node for copy in client.locations(name, timeout=TIMEOUT).copies if copy.complete}


def is_known(client: hoplite.Client, name: str, copies: int) -> None:
    """Wait until the directory knows at least `copies` copies of `name`, complete or not."""
    eventually(
        lambda: len(client.locations(name, timeout=TIMEOUT).copies) >= copies, f"{copies} copies of {name}"
    )


def names_owned_by(clients: Sequence[hoplite.Client], node: int, count: int = 1) -> list[str]:
    """Names whose directory owner is `node`. No other calls may run at the same time."""
    candidates = (f"owned {number} {time.monotonic_ns()}" for number in itertools.count())
    return list(itertools.islice((name for name in candidates if owner_of(clients, name) == node), count))


def owner_of(clients: Sequence[hoplite.Client], name: str) -> int:
    """The node with the directory entry of `name`, which must not exist yet.

    This announces the name and looks for the node whose number of entries grows.
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
    """Bytes that differ for each seed and at each place, so that misplaced bytes are found."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def sum_of(seeds: Iterable[int], size: int = SIZE) -> Bytes:
    """The sum of `bytes_of` the seeds."""
    total = np.zeros(size, np.uint8)
    for seed in seeds:
        total += bytes_of(seed, size)
    return total


@dataclass(frozen=True)
class Usage:
    """Store use, transfers and reductions of a node. A test may not leave more than before."""

    used_bytes: int
    copies: int
    transfers: int
    reductions: int


def usage(client: hoplite.Client) -> Usage:
    status = client.status(timeout=TIMEOUT)
    return Usage(status.used_bytes, status.copies, status.transfers, status.reductions)


def returns_to(before: Sequence[Usage], clients: Sequence[hoplite.Client]) -> None:
    """Wait until the usage of each client's node is no more than it was `before`."""
    eventually(lambda: [usage(client) for client in clients] == list(before), f"back to {before}")
