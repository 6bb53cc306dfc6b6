"""Absurd sizes, shapes, ids, counts and time-outs raise the documented error and harm nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import hoplite
import numpy as np
import pytest

Call = Callable[[hoplite.Client], Any]

HUGE = [1 << 47, 1 << 48, 1 << 62, 1 << 63, 1 << 64, 1 << 70, 10**30]


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


ABSURD: dict[str, Call] = {
    **{f"create of {n} doubles": lambda client, n=n: client.create("x", (n,), "f8") for n in HUGE},
    **{f"create of 0 times {n}": lambda client, n=n: client.create("x", (0, n), "f8") for n in HUGE[1:]},
    "create of a negative length": lambda client: client.create("x", -1, "f8"),
    "create of a fraction": lambda client: client.create("x", 1.5, "f8"),
    "create of no shape": lambda client: client.create("x", None, "f8"),
    "create of words": lambda client: client.create("x", ("1", "2"), "f8"),
    "create of 65 dimensions": lambda client: client.create("x", (1,) * 65, "u1"),
    "create of nonsense": lambda client: client.create("x", (2,), "nonsense"),
    "create of Python objects": lambda client: client.create("x", (2,), object),
    "put of Python objects": lambda client: client.put(np.array([None])),
    "put of a number": lambda client: client.put(5),
    "put of pointers": lambda client: client.put((ctypes.c_void_p * 3)()),
    "put of what was released": lambda client: client.put(released()),
    "get into what was released": lambda client: client.get("x", out=released()),
    "get into Python objects": lambda client: client.get("x", out=np.array([None])),
    "get within -1 s": lambda client: client.get("x", timeout=-1),
    "get within NaN": lambda client: client.get("x", timeout=float("nan")),
    "reduce of nothing": lambda client: client.reduce([], target="t"),
    "reduce of many times the same": lambda client: client.reduce(["a", "a"]),
    "reduce onto a source": lambda client: client.reduce(["a", "b"], target="a"),
    "reduce of too many": lambda client: client.reduce(["a"], num_objects=1 << 70),
    "reduce of too few": lambda client: client.reduce(["a"], num_objects=-1),
    "reduce by nonsense": lambda client: client.reduce(["a"], op="nonsense"),
    "reduce in no order": lambda client: client.reduce(["a"], order="nonsense"),
    "reduce of 5,000": lambda client: client.reduce([str(n) for n in range(5000)]),
    "wait for too many": lambda client: client.wait(["a"], 1 << 70),
    "wait for too few": lambda client: client.wait(["a"], -1),
    "wait twice": lambda client: client.wait(["a", "a"]),
    "wait for 100,000": lambda client: client.wait([str(n) for n in range(100_000)]),
    "delete of 100,000": lambda client: client.delete([str(n) for n in range(100_000)]),
    "prefetch to nonsense": lambda client: client.prefetch("x", "nonsense"),
    "prefetch to a stranger": lambda client: client.prefetch("x", "127.0.0.1:1"),
}


@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_call_is_refused_and_harms_nothing(client: hoplite.Client, what: str) -> None:
    before = client.status(timeout=30)
    with pytest.raises(hoplite.BadArgument):
        ABSURD[what](client)
    after = client.status(timeout=30)
    assert (after.copies, after.entries, after.used_bytes) == (
        before.copies,
        before.entries,
        before.used_bytes,
    )


def test_an_object_larger_than_any_store_is_refused_at_once(client: hoplite.Client) -> None:
    with pytest.raises(hoplite.StoreFull):
        client.create("x", ((1 << 47) // 8,), "f8", timeout=30)


def test_arguments_of_another_type_raise_type_error(client: hoplite.Client) -> None:
    mistakes: list[Call] = [
        lambda client: client.get(5),
        lambda client: client.get(None),
        lambda client: client.get("x", timeout="5"),
    ]
    for mistake in mistakes:
        with pytest.raises(TypeError):
            mistake(client)
