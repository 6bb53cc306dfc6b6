"""PyTorch CPU tensors, where PyTorch is installed."""

from __future__ import annotations

import gc

import hoplite
import numpy as np
import pytest
from conftest import TIMEOUT, Names
from hoplite.values import payload_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (300, 400)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_there_and_back(
    clients: list[hoplite.Client], name: Names, dtype: str, shape: tuple[int, ...]
) -> None:
    tensor = (torch.rand(shape) * 100).to(getattr(torch, dtype))
    id = clients[0].put(tensor, name())
    got = clients[1].get_torch(id, timeout=TIMEOUT)
    assert got.dtype == tensor.dtype
    assert torch.equal(got, tensor)
    room = torch.empty_like(tensor)
    assert clients[1].get(id, out=room, timeout=TIMEOUT) is room
    assert torch.equal(room, tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_are_not_copied_before_the_store(dtype: str) -> None:
    tensor = torch.ones(1000).to(getattr(torch, dtype))
    assert payload_of(tensor).parts[0].ctypes.data == tensor.data_ptr()


def test_strided_and_special_tensors(clients: list[hoplite.Client], name: Names) -> None:
    parameter = torch.nn.Parameter(torch.ones(10))
    strided = torch.arange(100).reshape(10, 10)[::2, 1::3]
    for tensor in (parameter, strided, torch.tensor([1 + 2j]).conj()):
        got = clients[1].get_torch(clients[0].put(tensor, name()), timeout=TIMEOUT)
        assert torch.equal(got, tensor.detach())


def test_bfloat16_is_reduced(clients: list[hoplite.Client], name: Names) -> None:
    names = [name(i) for i in range(3)]
    for i, each in enumerate(names):
        clients[i].put(torch.full((100_000,), float(i), dtype=torch.bfloat16), each)
    target = clients[0].reduce(names, target=name("sum"), timeout=TIMEOUT).target
    assert torch.equal(clients[3].get_torch(target), torch.full((100_000,), 3.0, dtype=torch.bfloat16))


def test_dtypes_unknown_to_torch_are_a_mismatch(clients: list[hoplite.Client], name: Names) -> None:
    id = clients[0].put(np.zeros(3, "M8[s]"), name())
    with pytest.raises(hoplite.Mismatch, match="datetime64"):
        clients[0].get_torch(id)


def test_torch_has_no_foreign_byte_order(clients: list[hoplite.Client], name: Names) -> None:
    id = clients[0].put(np.arange(3, dtype=">f4"), name())
    with pytest.raises(hoplite.Mismatch, match=">f4"):
        clients[0].get_torch(id)


def test_a_tensor_over_a_created_array_keeps_its_memory() -> None:
    with hoplite.LocalCluster(1, store_size="32MiB") as cluster:
        client = cluster.connect(0)
        size = 20 << 20
        with client.create("it", size, np.uint8) as creation:
            tensor = torch.from_numpy(creation.array)
            tensor.fill_(1)
        client.delete("it", timeout=TIMEOUT)
        del creation
        gc.collect()
        with pytest.raises(hoplite.StoreFull):
            client.put(np.zeros(size, np.uint8), timeout=0.1)
        assert bool((tensor == 1).all())
        del tensor
        gc.collect()
        client.put(np.zeros(size, np.uint8), timeout=TIMEOUT)
