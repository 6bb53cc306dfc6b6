"""The names in pickles are those of the functions that unpickling calls."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("ray")

from hoplite.ids import ObjectId
from hoplite.ray import hooks
from hoplite.ray.values import handles, packing
from hoplite.ray.values.batched_fetch import note_part, parts_noted, with_prefetch
from hoplite.ray.values.forms import Form
from hoplite.ray.values.handle_unpickler import LOAD_HANDLE, UNPACK
from hoplite.ray.values.pickled_names import HANDLES_MARK
from ray._common.utils import load_class


def test_the_pickle_of_a_handle_has_the_mark() -> None:
    assert HANDLES_MARK in pickle.dumps(handles.Handle(None, Form.ARRAY, None))
    assert (handles.load.__module__, handles.load.__name__) == LOAD_HANDLE
    assert (packing.unpacked.__module__, packing.unpacked.__name__) == UNPACK


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_pickle_of_several_parts_first_requests_all(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    ids = [ObjectId.random() for _ in range(count)]
    with parts_noted():
        for id in ids:
            note_part(id)
        stream = with_prefetch(pickle.dumps("value"))
    asked: list[bytes] = []
    monkeypatch.setattr(handles, "prefetch_parts", asked.append)
    assert pickle.loads(stream) == "value"
    assert asked == ([] if count == 1 else [b"".join(map(bytes, ids))])


def test_workers_find_the_hook_of_the_runtime_environment() -> None:
    assert load_class(hooks.runtime_env()[hooks.HOOK]) is hooks.install
