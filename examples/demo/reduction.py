"""Act 2: four arrays on four nodes become their sum."""

from __future__ import annotations

import time

import hoplite
import numpy as np

from examples.demo.stage import CALL_TIMEOUT, NODES, Stage

ELEMENTS = 16 << 20
TARGET = "the sum"


def perform(stage: Stage) -> None:
    """Reduce one array per node, and compare with what NumPy makes of them."""
    size = ELEMENTS * 4
    stage.console.rule(f"2  Reduce {NODES} arrays of {size >> 20} MiB, one on each node")
    puts = [stage.processes.submit(_put, stage.cluster.sockets[i], i) for i in range(NODES)]
    for put in puts:
        put.result()

    start = time.perf_counter()
    with stage.console.status("   reducing"):
        names = [_name(i) for i in range(NODES)]
        result = stage.clients[0].reduce(names, target=TARGET, timeout=CALL_TIMEOUT).result()
        total = stage.clients[0].get(TARGET, timeout=CALL_TIMEOUT)
    elapsed = time.perf_counter() - start

    expected = _array(0)
    for i in range(1, NODES):
        expected += _array(i)
    # Floating-point sums depend on the order of arrival, but only in the last digits.
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
    folded = ", ".join(str(source) for source in result.sources)
    stage.console.print(f"   equal to NumPy's sum; folded: {folded}")
    rate = size * NODES / elapsed
    stage.console.print(f"   {size * NODES >> 20} MiB reduced in {elapsed:.2f} s, {stage.of_machine(rate)}")
    stage.clients[0].delete([TARGET, *names])


def _name(node: int) -> str:
    return f"array {node}"


def _array(node: int) -> np.ndarray:
    return np.random.default_rng(node).standard_normal(ELEMENTS, np.float32)


def _put(socket: str, node: int) -> None:
    """In another process: put this node's array."""
    with hoplite.connect(socket) as client:
        client.put(_array(node), _name(node), timeout=CALL_TIMEOUT)
