"""Arrays that are made in the store are put without a copy, and are as safe as others."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from conftest import eventually
from ray_cluster import IGNORED, STORE_BYTES, TIMEOUT, goes_back_to, is_deleted, on

ray = pytest.importorskip("ray")
hoplite_ray = pytest.importorskip("hoplite.ray")
handles = pytest.importorskip("hoplite.ray.values.handles")

pytestmark = IGNORED

LENGTH = 1 << 18


def made(value: float) -> np.ndarray:
    """2 MiB."""
    array: np.ndarray = hoplite_ray.empty((2, LENGTH), np.float32)
    array[:] = value
    return array


def test_put_shares_the_memory_of_the_array(api: Any) -> None:
    array = made(3)
    reference = api.put(array)
    got = api.get(reference, timeout=TIMEOUT)
    assert np.all(got == 3)
    # Write through the maker's address. Views are mapped read-only.
    ctypes.c_float.from_address(array.ctypes.data).value = 5
    assert got[0, 0] == 5
    assert (got.shape, got.dtype) == (array.shape, array.dtype)
    assert not array.flags.writeable


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")
def test_changed_shapes_and_dtypes_are_kept(api: Any) -> None:
    reshaped, cast, transposed = made(3), made(3), made(3)
    reshaped.shape = (2 * LENGTH,)
    cast.dtype = np.int32
    transposed.strides = (4, 8)
    for array in (reshaped, cast, transposed):
        got = api.get(api.put(array), timeout=TIMEOUT)
        assert (got.shape, got.dtype) == (array.shape, array.dtype)
        assert np.array_equal(got, array)


def test_the_array_outlives_its_object(api: Any) -> None:
    array = made(3)
    reference = api.put(array)
    with handles.kept_as_handles():
        id = ray.get(reference).id
    del reference
    eventually(lambda: is_deleted(id), "it is deleted with the last reference")
    # These would take the memory if it were free.
    others = [api.put(made(4)) for _ in range(8)]
    assert np.all(array == 3)
    row = array[1]
    del array, others
    others = [api.put(made(5)) for _ in range(8)]
    assert np.all(row == 3)
    del row, others
    goes_back_to(0)


def test_results_and_their_sum(api: Any) -> None:
    @api.remote
    def make(value: float) -> np.ndarray:
        return made(value)

    parts = [make.options(**on(node)).remote(node) for node in range(3)]
    assert np.all(api.get(parts[2], timeout=TIMEOUT) == 2)
    total, _ = hoplite_ray.reduce(parts)
    assert np.all(api.get(total, timeout=TIMEOUT) == 3)


def test_views_and_second_puts_are_copied(api: Any) -> None:
    array = made(1)
    row = api.put(array[1])
    array[:] = 2
    first, again = api.put(array), api.put([array])
    assert np.all(api.get(row, timeout=TIMEOUT) == 1)
    assert np.all(api.get(first, timeout=TIMEOUT) == 2)
    assert np.all(api.get(again, timeout=TIMEOUT)[0] == 2)


def test_arrays_never_sent_free_their_memory(api: Any) -> None:
    for value in range(2 * STORE_BYTES // made(0).nbytes):
        array = made(value)
        assert array.base is not None, "there was room in the store"
        row = array[1]
        del array
        assert np.all(row == value)
    del row
    goes_back_to(0)


def test_small_arrays_and_arrays_without_space_are_numpys_own(api: Any) -> None:
    assert hoplite_ray.empty(10).base is None
    assert hoplite_ray.empty(STORE_BYTES, np.uint8).base is None
    assert hoplite_ray.empty(1 << 20, object).base is None
