"""Two reductions at once, in stores too small for the partial sums of both: one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import hoplite
import numpy as np
from conftest import EVENTUALLY_SECONDS, eventually
from faults import MIB, TIMEOUT

SIZE = 8 * MIB
SOURCES = 3
"""Of every node's store: two of the one reduction and one of the other; or two, and both targets."""
STORE = (SOURCES + 1) * SIZE + MIB
"""Room for one sum besides."""


def test_two_reductions_that_wait_for_each_others_room(threads: ThreadPoolExecutor) -> None:
    with hoplite.LocalCluster(4, store_size=STORE) as cluster:
        clients = [cluster.connect(node) for node in range(4)]
        values = {name: np.full(SIZE // 4, number, np.int32) for number, name in enumerate(names("ab"), 1)}

        def put(node: int, *sources: str) -> None:
            for name in sources:
                clients[node].put(name, values[name], timeout=TIMEOUT)

        def reduce(node: int, target: str) -> list[str]:
            result = clients[node].reduce(target, names(target), order="fixed", timeout=2 * EVENTUALLY_SECONDS)
            return list(result.sources)

        def has_room_for_no_more(node: int) -> bool:
            return clients[node].status(timeout=TIMEOUT).used_bytes > SOURCES * SIZE

        put(0, "a1", "a2")
        put(1, "b1", "b2")
        put(2, "a4")
        put(3, "b4")
        both = [threads.submit(reduce, 2, "a"), threads.submit(reduce, 3, "b")]
        # Each begins with a sum on one node, and goes on where the other has begun.
        for node in (0, 1):
            eventually(lambda node=node: has_room_for_no_more(node) or usage_of(clients[node]) > 2 * SIZE, "begun")
        put(1, "a3")
        put(0, "b3")
        for target, call in zip("ab", both, strict=True):
            assert call.result(EVENTUALLY_SECONDS) == names(target)
        for target, node in (("a", 3), ("b", 2)):
            expected = sum(values[name][0] for name in names(target))
            assert (clients[node].get(target, timeout=TIMEOUT) == expected).all()


def names(targets: str) -> list[str]:
    return [f"{target}{number}" for target in targets for number in range(1, 5)]
