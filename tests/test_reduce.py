"""Reductions compared with NumPy: every dtype and op, any order of arrival, any k, the named sources."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import hoplite
import ml_dtypes
import numpy as np
import pytest
from conftest import TIMEOUT, Clients, Names, eventually

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FOLDS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}

# Up to 64 KiB the coordinator folds the owners' answers. Larger sources use a tree.
LENGTHS = [1, 1000, 100_003]


def arrays(dtype: np.typing.DTypeLike, count: int, length: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Small whole numbers. Their sums and products are exact in every dtype and order."""
    return [rng.integers(1, 3, length).astype(dtype) for _ in range(count)]


def put_all(clients: Clients, name: Names, values: list[np.ndarray]) -> list[str]:
    """Put the sources on the nodes in turn."""
    names = [name(f"source {i}") for i in range(len(values))]
    for i, value in enumerate(values):
        clients[i % len(clients)].put(value, names[i])
    return names


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("op", FOLDS)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=lambda d: np.dtype(d).name)
def test_every_dtype_and_op(
    clients: Clients, name: Names, rng: np.random.Generator, dtype: type, op: str, length: int
) -> None:
    values = arrays(dtype, 5, length, rng)
    names = put_all(clients, name, values)
    reduction = clients[1].reduce(names, target=name("target"), op=op, timeout=TIMEOUT)  # type: ignore[arg-type]
    result = reduction.result()
    expected = values[0]
    for value in values[1:]:
        expected = FOLDS[op](expected, value)
    for client in (clients[1], clients[3]):
        got = client.get(reduction.target, timeout=TIMEOUT)
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got, expected)
    assert sorted(map(str, result.sources)) == sorted(names)
    assert result.unreduced == ()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_mean(clients: Clients, name: Names, rng: np.random.Generator, dtype: type, length: int) -> None:
    values = arrays(dtype, 4, length, rng)
    names = put_all(clients, name, values)
    target = clients[0].reduce(names, target=name("mean"), op="mean", timeout=TIMEOUT).target
    expected = sum(value.astype(np.float64) for value in values) / 4
    np.testing.assert_array_equal(clients[2].get(target, timeout=TIMEOUT), expected.astype(dtype))


def test_integers_wrap_and_nan_spreads_as_in_numpy(clients: Clients, name: Names) -> None:
    for op, fold in FOLDS.items():
        a = np.array([100, -100, 127] * 30_000, np.int8)
        b = np.array([100, -100, 127] * 30_000, np.int8)
        got = clients[0].reduce(put_all(clients, name, [a, b]), target=name(op), op=op, timeout=TIMEOUT)  # type: ignore[arg-type]
        np.testing.assert_array_equal(clients[0].get(got.target, timeout=TIMEOUT), fold(a, b))
        x = np.array([1.0, np.nan, -np.inf, np.nan] * 30_000, np.float32)
        y = np.array([np.nan, 2.0, np.inf, np.nan] * 30_000, np.float32)
        got = clients[0].reduce(put_all(clients, name, [x, y]), target=name(op), op=op, timeout=TIMEOUT)  # type: ignore[arg-type]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(clients[0].get(got.target, timeout=TIMEOUT), fold(x, y))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7, 11, 13)])
def test_the_shape_is_kept(clients: Clients, name: Names, shape: tuple[int, ...]) -> None:
    values = [np.full(shape, i, np.float32) for i in range(3)]
    reduction = clients[0].reduce(put_all(clients, name, values), target=name("sum"), timeout=TIMEOUT)
    got = clients[1].get(reduction.target, timeout=TIMEOUT)
    np.testing.assert_array_equal(got, np.full(shape, 3, np.float32))
    assert got.shape == shape


@pytest.mark.parametrize("length", LENGTHS)
def test_sources_put_after_the_call(
    clients: Clients, name: Names, rng: np.random.Generator, length: int
) -> None:
    names = [name(i) for i in range(6)]
    reduction = clients[2].reduce(names, target=name("sum"), timeout=TIMEOUT)
    values = arrays(np.float32, 6, length, rng)
    for i in (5, 0, 3, 1, 4):
        clients[i % 4].put(values[i], names[i])
    assert not reduction.done()
    clients[2].put(values[2], names[2])
    np.testing.assert_array_equal(clients[0].get(reduction.target, timeout=TIMEOUT), sum(values))
    eventually(reduction.done, "the reduction is done")


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_first_k_of_n(clients: Clients, name: Names, k: int, length: int) -> None:
    names = [name(i) for i in range(8)]
    reduction = clients[0].reduce(names, target=name("sum"), num_objects=k, timeout=TIMEOUT)
    came = [6, 1, 4, 0, 3][:k]
    for i in came:
        clients[i % 4].put(np.full(length, 2.0**i), names[i])
    result = reduction.result()
    np.testing.assert_array_equal(
        clients[3].get(reduction.target, timeout=TIMEOUT), np.full(length, sum(2.0**i for i in came))
    )
    assert {str(source) for source in result.sources} == {names[i] for i in came}
    assert [str(source) for source in result.unreduced] == [names[i] for i in range(8) if i not in came]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_result_names_the_k_sources_it_has(clients: Clients, name: Names, length: int) -> None:
    names = put_all(clients, name, [np.full(length, 2.0**i) for i in range(8)])
    result = clients[1].reduce(names, target=name("sum"), num_objects=3, timeout=TIMEOUT).result()
    assert len(result.sources) == 3
    expected = sum(2.0 ** names.index(str(source)) for source in result.sources)
    np.testing.assert_array_equal(clients[0].get(result.target, timeout=TIMEOUT), np.full(length, expected))


def test_many_sources_on_each_node_are_folded_there(clients: Clients, name: Names) -> None:
    before = sum(client.status().sent_bytes for client in clients)
    length = 250_000
    names = put_all(clients, name, [np.full(length, i, np.float32) for i in range(20)])
    target = clients[0].reduce(names, target=name("sum"), timeout=TIMEOUT).result().target
    np.testing.assert_array_equal(
        clients[0].get(target, timeout=TIMEOUT), np.full(length, sum(range(20)), np.float32)
    )
    sent = sum(client.status().sent_bytes for client in clients) - before
    # Only four partial sums and the result cross the network, not twenty sources.
    assert sent < 8 * length * 4


@pytest.mark.parametrize("length", LENGTHS)
def test_targets_as_sources_while_still_partial(clients: Clients, name: Names, length: int) -> None:
    firsts = [name(f"first {i}") for i in range(4)]
    seconds = [name(f"second {i}") for i in range(4)]
    a = clients[0].reduce(firsts, target=name("a"), timeout=TIMEOUT)
    b = clients[1].reduce(seconds, target=name("b"), timeout=TIMEOUT)
    both = clients[2].reduce([a.target, b.target], target=name("both"), op="prod", timeout=TIMEOUT)
    for i in range(4):
        clients[i].put(np.full(length, i, np.float64), firsts[i])
        clients[3 - i].put(np.full(length, 10.0), seconds[i])
    np.testing.assert_array_equal(clients[3].get(both.target, timeout=TIMEOUT), np.full(length, 6.0 * 40.0))
    assert set(both.result().sources) == {a.target, b.target}


@pytest.mark.parametrize("length", [1000, 300_001])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_fixed_order_is_bitwise_the_same_for_every_arrival(
    clients: Clients, name: Names, rng: np.random.Generator, dtype: type, length: int
) -> None:
    values = [rng.standard_normal(length).astype(dtype) for _ in range(4)]
    expected = values[0]
    for value in values[1:]:
        expected = expected + value
    seen = set()
    for attempt, arrival in enumerate(itertools.islice(itertools.permutations(range(4)), 0, 24, 5)):
        names = [name(f"{attempt} {i}") for i in range(4)]
        reduction = clients[attempt % 4].reduce(
            names, target=name(f"{attempt} sum"), order="fixed", timeout=TIMEOUT
        )
        for i in arrival:
            clients[(i + attempt) % 4].put(values[i], names[i])
        got = clients[0].get(reduction.target, timeout=TIMEOUT)
        seen.add(got.tobytes())
        assert [str(source) for source in reduction.result().sources] == names
    assert len(seen) == 1
    assert seen == {expected.tobytes()}


def test_allreduce_brings_the_result_to_the_node_of_every_source(clients: Clients, name: Names) -> None:
    length = 200_000
    names = put_all(clients, name, [np.full(length, i, np.float32) for i in range(4)])
    target = clients[0].allreduce(names, target=name("sum"), timeout=TIMEOUT).result().target
    everyone = {client.node for client in clients}

    def holders() -> bool:
        return {c.node for c in clients[0].locations(target).copies if c.complete} == everyone

    eventually(holders, "every node that gave a source has the sum")
    for client in clients:
        np.testing.assert_array_equal(client.get(target, timeout=TIMEOUT), np.full(length, 6, np.float32))


def test_the_caller_may_have_no_source_at_all(clients: Clients, name: Names) -> None:
    length = 200_000
    names = [name(i) for i in range(2)]
    clients[1].put(np.ones(length), names[0])
    clients[1].put(np.ones(length), names[1])
    target = clients[3].reduce(names, target=name("sum"), timeout=TIMEOUT).result().target
    np.testing.assert_array_equal(clients[2].get(target, timeout=TIMEOUT), np.full(length, 2.0))


def test_a_single_source(clients: Clients, name: Names) -> None:
    for length in LENGTHS:
        names = put_all(clients, name, [np.arange(length, dtype=np.int64)])
        target = clients[1].reduce(names, target=name("itself"), timeout=TIMEOUT).result().target
        np.testing.assert_array_equal(clients[2].get(target, timeout=TIMEOUT), np.arange(length))


def test_a_random_target_by_default(clients: Clients, name: Names) -> None:
    names = put_all(clients, name, [np.ones(10)] * 2)
    reduction = clients[0].reduce(names, timeout=TIMEOUT)
    assert reduction.target.name is None
    np.testing.assert_array_equal(clients[1].get(reduction.target, timeout=TIMEOUT), np.full(10, 2.0))
    clients[0].delete(reduction.target)


def test_a_timeout_of_result_leaves_the_reduction_going(clients: Clients, name: Names) -> None:
    names = [name(0), name(1)]
    reduction = clients[0].reduce(names, target=name("sum"))
    with pytest.raises(hoplite.TimedOut, match="goes on"):
        reduction.result(timeout=0.05)
    for source in names:
        clients[1].put(np.ones(100_000), source)
    assert set(map(str, reduction.result(TIMEOUT).sources)) == set(names)
    assert reduction.result() is reduction.result()


@pytest.mark.parametrize("timeout", [None, TIMEOUT])
def test_several_threads_wait_for_one_reduction(
    clients: Clients, name: Names, threads: ThreadPoolExecutor, timeout: float | None
) -> None:
    for turn in range(10):
        names = [name(f"{turn} {source}") for source in range(2)]
        reduction = clients[0].reduce(names, target=name(f"{turn} sum"), timeout=TIMEOUT)
        waiting = [threads.submit(reduction.result, timeout) for _ in range(6)]
        for source in names:
            clients[1].put(np.ones(1000), source)
        results = [each.result() for each in waiting]
        assert all(result is results[0] for result in results)


def test_close_ends_a_reduction(cluster: hoplite.LocalCluster, name: Names) -> None:
    client = cluster.connect(0)
    reduction = client.reduce([name(0), name(1)], target=name("sum"))
    client.close()
    assert reduction.done()
    assert "done" in repr(reduction)
    with pytest.raises(hoplite.Aborted):
        reduction.result()


def test_a_timeout_of_the_reduction_ends_it(clients: Clients, name: Names) -> None:
    reduction = clients[0].reduce([name(0), name(1)], target=name("sum"), timeout=0.05)
    for _ in range(2):
        with pytest.raises(hoplite.TimedOut):
            reduction.result(TIMEOUT)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"sources": []}, "num_objects"),
        ({"sources": ["a", "b"], "num_objects": 0}, "num_objects"),
        ({"sources": ["a", "b"], "num_objects": 3}, "num_objects"),
        ({"sources": ["a", "b"], "op": "xor"}, "xor"),
        ({"sources": ["a", "b"], "order": "random"}, "random"),
        ({"sources": ["a", "a"]}, "'a'"),
        ({"sources": ["a", "b"], "target": "a"}, "'a'"),
        ({"sources": ["a", "b"], "timeout": -1}, "timeout"),
    ],
    ids=str,
)
def test_wrong_use_is_an_error_before_anything_moves(
    client: hoplite.Client, arguments: dict[str, object], what: str
) -> None:
    with pytest.raises(hoplite.BadArgument, match=what):
        client.reduce(**arguments).result(TIMEOUT)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [10, 100_000])
@pytest.mark.parametrize(
    "second",
    [
        lambda n: np.ones(n, np.float64),
        lambda n: np.ones(n + 1, np.float32),
        lambda n: np.ones(n, "c8"),
        lambda n: bytes(4 * n),
    ],
    ids=["dtype", "size", "irreducible", "bytes"],
)
def test_unequal_sources_are_a_mismatch(
    clients: Clients, name: Names, length: int, second: Callable[[int], object]
) -> None:
    names = [name(0), name(1)]
    clients[0].put(np.ones(length, np.float32), names[0])
    clients[1].put(second(length), names[1])
    with pytest.raises(hoplite.Mismatch):
        clients[2].reduce(names, target=name("sum")).result(TIMEOUT)


def test_mean_of_integers_is_refused(clients: Clients, name: Names) -> None:
    names = put_all(clients, name, [np.ones(10, np.int32)] * 2)
    with pytest.raises((hoplite.BadArgument, hoplite.Mismatch), match="mean"):
        clients[0].reduce(names, target=name("mean"), op="mean").result(TIMEOUT)
