"""Two reductions at once, in stores too small for the partial sums of both. They run one after the other."""

from __future__ import annotations

import hoplite
import numpy as np
from conftest import EVENTUALLY_SECONDS, eventually
from faults import MIB, TIMEOUT

SIZE = 8 * MIB
STORE = 4 * SIZE + MIB
"""Space for the three sources of a node and one sum."""


def test_two_reductions_wait_for_each_others_space() -> None:
    with hoplite.LocalCluster(4, store_size=STORE) as cluster:
        clients = [cluster.connect(node) for node in range(4)]
        values = {name: np.full(SIZE // 4, number, np.int32) for number, name in enumerate(names("ab"))}

        def put(node: int, *sources: str) -> None:
            for name in sources:
                clients[node].put(values[name], id=name, timeout=TIMEOUT)

        def used(node: int) -> int:
            return clients[node].status(timeout=TIMEOUT).used_bytes

        put(0, "a1", "a2")
        put(1, "b1", "b2")
        put(2, "a4")
        put(3, "b4")
        both = [
            clients[node].reduce(names(target), target=target, order="fixed", timeout=TIMEOUT)
            for node, target in ((2, "a"), (3, "b"))
        ]
        # Each reduction holds the space that the other one needs next.
        eventually(lambda: min(used(0), used(1)) > 3 * SIZE, "each has begun")
        put(1, "a3")
        put(0, "b3")
        for target, reduction in zip("ab", both, strict=True):
            sources = reduction.result(EVENTUALLY_SECONDS).sources
            assert sources == tuple(hoplite.ObjectId.of(name) for name in names(target))
        for target, node in (("a", 3), ("b", 2)):
            expected = sum(values[name][0] for name in names(target))
            np.testing.assert_array_equal(clients[node].get(target, timeout=TIMEOUT), expected)


def names(targets: str) -> list[str]:
    return [f"{target}{number}" for target in targets for number in range(1, 5)]
