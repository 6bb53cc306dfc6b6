"""Random calls, many of them absurd. Each ends with a result or a documented error, and harms nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import hoplite
import numpy as np
import pytest
from conftest import eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Call = Callable[[hoplite.Client], object]

FEW = [f"drawn {number}" for number in range(4)]
"""Ids that several calls use, so that some of these calls are valid."""

KEPT = "kept all the time"
KEPT_ARRAY = np.arange(30_000, dtype=np.int32)

SOON = st.sampled_from([0, 0.0, 1e-9, 0.01, -0.0, True])
BAD_TIME = st.sampled_from([-1, -1e300, math.nan, -math.inf, "5", b"", [], object()])
NUMBERS = st.one_of(
    st.integers(-3, 5), st.integers(), st.sampled_from([1 << n for n in (15, 31, 32, 47, 48, 62, 63, 64, 70)])
)
NONSENSE = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=40),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(["\ud800", "a" * 100_000, object(), int, {}, np.zeros(3), np.array([None]), 1j]),
)


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any] = NONSENSE) -> st.SearchStrategy[Any]:
    """Valid three times of four, so that often one argument of a call alone is wrong."""
    return st.integers(0, 3).flatmap(lambda die: bad if die == 0 else good)


IDS = mostly(st.sampled_from(FEW))
TIMES = mostly(SOON, BAD_TIME)
SEVERAL = mostly(st.lists(IDS, max_size=6))
SHAPES = mostly(
    st.lists(st.integers(0, 6), max_size=3), st.one_of(NUMBERS, NONSENSE, st.lists(NUMBERS, max_size=70))
)
DTYPES = mostly(st.sampled_from(["f4", "f8", "u1", "i2"]))
COUNTS = mostly(st.integers(0, 4), st.one_of(NUMBERS, NONSENSE))
OPS = mostly(st.sampled_from(["sum", "min", "max", "prod"]))
ORDERS = mostly(st.sampled_from(["arrival", "fixed"]))
ON_LOST = mostly(st.sampled_from(["raise", "wait"]))
VALUES = mostly(st.sampled_from([b"", b"bytes", np.zeros((3, 0)), np.ones(9, "f4"), np.ones(20_000, "f8")]))
NODES = mostly(st.just(()), st.one_of(NONSENSE, st.lists(NONSENSE, max_size=3), st.just("127.0.0.1:1")))


made: set[hoplite.ObjectId | str] = set()
"""The objects that the drawn calls may have made."""


def put(client: hoplite.Client, value: Any, id: Any, timeout: Any) -> None:
    made.add(client.put(value, id, timeout=timeout))


def create(client: hoplite.Client, id: Any, shape: Any, dtype: Any, timeout: Any, ending: str) -> None:
    creation = client.create(id, shape, dtype, timeout=timeout)
    made.add(id)
    if ending == "seal":
        creation.seal()
    elif ending == "abort":
        creation.abort()
    # Without a reference the reduction would be given up.


def reduce(client: hoplite.Client, *arguments: Any, everywhere: bool) -> None:
    sources, target, count, op, order, timeout = arguments
    run = client.allreduce if everywhere else client.reduce
    reduction = run(sources, target=target, num_objects=count, op=op, order=order, timeout=timeout)
    made.add(reduction.target)
    reduction.result(timeout=0.01)


CALLS: st.SearchStrategy[Call] = st.one_of(
    st.builds(lambda v, i, t: lambda c: put(c, v, i, t), VALUES, IDS, TIMES),
    st.builds(
        lambda i, s, d, t, e: lambda c: create(c, i, s, d, t, e),
        IDS, SHAPES, DTYPES, TIMES, st.sampled_from(["seal", "abort", "forget"]),
    ),
    st.builds(lambda i, t, o: lambda c: c.get(i, timeout=t, on_lost=o), IDS, TIMES, ON_LOST),
    st.builds(lambda i, t, o: lambda c: c.get(i, timeout=t, out=o), IDS, TIMES, mostly(st.just(None))),
    st.builds(lambda i, t: lambda c: c.delete(i, timeout=t), st.one_of(IDS, SEVERAL), TIMES),
    st.builds(
        lambda s, i, n, op, order, t, e: lambda c: reduce(c, s, i, n, op, order, t, everywhere=e),
        SEVERAL, st.one_of(st.none(), IDS), st.one_of(st.none(), COUNTS), OPS, ORDERS, TIMES, st.booleans(),
    ),
    st.builds(
        lambda s, n, t, o: lambda c: c.wait(s, n, timeout=t, on_lost=o),
        SEVERAL, st.one_of(st.none(), COUNTS), TIMES, ON_LOST,
    ),
    st.builds(lambda i, n, t: lambda c: c.prefetch(i, n, timeout=t), st.one_of(IDS, SEVERAL), NODES, TIMES),
    st.builds(lambda i, t: lambda c: c.locations(i, timeout=t), IDS, TIMES),
    st.builds(lambda t: lambda c: c.status(timeout=t), TIMES),
)  # fmt: skip


@pytest.fixture(scope="module")
def two() -> Iterator[list[hoplite.Client]]:
    """Clients of two nodes. The nodes keep one object all the time."""
    with hoplite.LocalCluster(2, store_size="64MiB") as cluster, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(cluster.connect(node)) for node in range(2)]
        clients[0].put(KEPT_ARRAY, KEPT, timeout=30)
        yield clients


@settings(max_examples=1000, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(st.tuples(st.integers(0, 1), CALLS), min_size=1, max_size=4))
def test_drawn_calls_end_as_the_docs_say(two: list[hoplite.Client], calls: list[tuple[int, Call]]) -> None:
    for node, call in calls:
        with contextlib.suppress(hoplite.HopliteError, TypeError):
            call(two[node])
    for client in two:
        assert np.array_equal(client.get(KEPT, timeout=30, copy=True), KEPT_ARRAY)


def test_drawn_calls_leave_nothing_behind(two: list[hoplite.Client]) -> None:
    """Runs behind the drawn calls."""
    two[0].delete(made | set(FEW), timeout=30)
    eventually(
        lambda: [client.status(timeout=30).copies for client in two] in ([1, 1], [1, 0]),
        "the object that was kept all the time is all that is left",
    )
    fresh = two[0].put(np.ones(5), timeout=30)
    assert two[1].get(fresh, timeout=30).sum() == 5
