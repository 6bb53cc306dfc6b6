"""Every dtype, shape and kind of buffer comes back as it was put."""

import array
import mmap
from collections.abc import Callable

import hoplite
import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from conftest import Names
from hoplite.values import REDUCIBLE, payload_of

DTYPES = [
    *"?bhilqBHILQefdgFDG",
    "S5",
    "U3",
    "V7",
    "M8[ns]",
    "m8[D]",
    ">f4",
    ">i8",
    np.dtype([("x", "<f4"), ("y", "<i8", (2, 3)), ("name", "S10")]),
    np.dtype([("a", "u1"), ("b", "<f8")], align=True),
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
]


def there_and_back(clients: list[hoplite.Client], name: Names, value: object) -> np.ndarray:
    """Put on the first node and get on the last."""
    id = clients[0].put(value, name())
    got = clients[-1].get(id, timeout=30)
    assert isinstance(got, np.ndarray)
    assert not got.flags.writeable
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(
    clients: list[hoplite.Client], name: Names, rng: np.random.Generator, dtype: np.typing.DTypeLike
) -> None:
    dt = np.dtype(dtype)
    raw = rng.integers(0, 2 if dt.kind in "?U" else 100, 30 * dt.itemsize, np.uint8)
    value = np.array(["abc", "de", ""] * 10, dt) if dt.kind == "U" else raw.view(dt)
    value = value.reshape(5, 6)
    got = there_and_back(clients, name, value)
    assert got.shape == value.shape
    assert got.dtype.newbyteorder("=") == dt.newbyteorder("=") or dt.isalignedstruct
    assert got.tobytes() == value.tobytes() or dt.isalignedstruct
    if dt.isalignedstruct:
        for field in dt.names or ():
            np.testing.assert_array_equal(got[field], value[field])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4, 5), (1,) * 32])
def test_every_shape(clients: list[hoplite.Client], name: Names, shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape)
    got = there_and_back(clients, name, value)
    assert got.shape == shape
    np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize(
    "layout",
    [
        lambda a: np.asfortranarray(a),
        lambda a: a[::2, ::3],
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: np.broadcast_to(a[0], (4, *a[0].shape)),
    ],
    ids=["fortran", "strided", "reversed", "transposed", "broadcast"],
)
def test_layouts_become_c_contiguous(
    clients: list[hoplite.Client], name: Names, layout: Callable[[np.ndarray], np.ndarray]
) -> None:
    value = layout(np.arange(120_000, dtype=np.int32).reshape(300, 400))
    got = there_and_back(clients, name, value)
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("size", [0, 1, 65_537])
@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, pa.py_buffer], ids=["bytes", "bytearray", "memoryview", "arrow"]
)
def test_plain_bytes_come_as_uint8(
    clients: list[hoplite.Client], name: Names, kind: Callable[[bytes], object], size: int
) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    got = there_and_back(clients, name, kind(content))
    assert got.dtype == np.uint8
    assert got.tobytes() == content


def test_typed_buffers_come_as_arrays(clients: list[hoplite.Client], name: Names) -> None:
    value = array.array("d", [1.5, 2.5])
    got = there_and_back(clients, name, value)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, value)


def test_a_mapped_file(clients: list[hoplite.Client], name: Names) -> None:
    with mmap.mmap(-1, 100_000) as mapped:
        mapped[:5] = b"hello"
        assert there_and_back(clients, name, mapped)[:5].tobytes() == b"hello"


def test_arrow_arrays_without_a_copy(clients: list[hoplite.Client], name: Names) -> None:
    value = pa.array(np.arange(100_000, dtype=np.float32))
    (data,) = payload_of(value).parts
    assert data.ctypes.data == value.buffers()[1].address
    np.testing.assert_array_equal(there_and_back(clients, name, value), value.to_numpy())


def test_arrow_reads_a_view(clients: list[hoplite.Client], name: Names) -> None:
    got = there_and_back(clients, name, np.arange(100_000, dtype=np.int64))
    viewed = pa.Array.from_buffers(pa.int64(), len(got), [None, pa.py_buffer(got)])
    assert viewed.buffers()[1].address == got.ctypes.data
    assert viewed[99_999].as_py() == 99_999


def test_arrow_arrays_with_nulls_are_refused(client: hoplite.Client) -> None:
    with pytest.raises(hoplite.BadArgument, match="buffer"):
        client.put(pa.array([1, None, 3]))


def test_masked_arrays_are_refused_as_arrow_arrays_with_nulls_are(
    clients: list[hoplite.Client], name: Names
) -> None:
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        clients[0].put(np.ma.array([1, 2, 3], mask=[0, 1, 0]))
    got = there_and_back(clients, name, np.ma.array([1, 2, 3]))
    np.testing.assert_array_equal(got, [1, 2, 3])


def test_numpy_scalars(clients: list[hoplite.Client], name: Names) -> None:
    got = there_and_back(clients, name, np.float32(2.5))
    assert got.shape == ()
    assert float(got) == 2.5


@pytest.mark.parametrize("value", [object(), 7, "text", [1, 2], {"a": 1}, None])
def test_values_without_a_buffer_are_refused(client: hoplite.Client, value: object) -> None:
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        client.put(value)


def test_arrays_of_python_objects_are_refused(client: hoplite.Client) -> None:
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        client.put(np.array([object()]))


def test_all_reducible_dtypes_are_named_as_the_node_names_them() -> None:
    for dtype in REDUCIBLE:
        dt = np.dtype(getattr(ml_dtypes, dtype, dtype))
        assert payload_of(np.zeros(3, dt)).header.dtype == dtype


def test_contiguous_values_are_not_copied_before_the_store() -> None:
    for value in (np.arange(10.0), np.zeros((3, 4), ml_dtypes.bfloat16), np.zeros(5, "M8[s]")):
        assert np.shares_memory(payload_of(value).parts[0], value.view(np.uint8))


UNDESCRIBED = {
    "fields of another package": np.dtype([("w", ml_dtypes.bfloat16)]),
    "overlapping fields": np.dtype({"names": ["a", "b"], "formats": ["f4", "u2"], "offsets": [0, 2]}),
    "fields out of order": np.dtype({"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [4, 0]}),
}


@pytest.mark.parametrize("dtype", UNDESCRIBED.values(), ids=UNDESCRIBED)
def test_dtypes_without_a_descriptor_are_refused(client: hoplite.Client, dtype: np.dtype) -> None:
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        client.put(np.zeros(3, dtype))
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        client.create("x", 3, dtype)


def test_subarray_dtypes_are_refused(client: hoplite.Client) -> None:
    with pytest.raises(hoplite.BadArgument, match="put_object"):
        client.create("x", 5, ("f4", (3,)))
