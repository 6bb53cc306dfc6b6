"""Sizes at which the route of an object changes, from zero to beyond 32 bits."""

import os
from collections.abc import Callable

import hoplite
import numpy as np
import pytest
from conftest import MIB

KIB = 1 << 10
GIB = 1 << 30

SIZES = [
    *(0, 1, 2, 3, 7, 63, 64, 65, 4095, 4096, 4097),
    *(64 * KIB - 1, 64 * KIB, 64 * KIB + 1),
    *(256 * KIB - 1, 256 * KIB + 1, MIB - 1, MIB, MIB + 1, 10 * MIB + 7),
]


@pytest.mark.parametrize("size", SIZES)
def test_every_way_to_put_and_get(
    clients: list[hoplite.Client], name: Callable[..., str], rng: np.random.Generator, size: int
) -> None:
    content = rng.integers(0, 256, size, np.uint8)
    put = clients[0].put(content, name("put"))
    with clients[1].create(name("create"), size, np.uint8) as creation:
        creation.array[...] = content
    for id in (put, creation.id):
        for reader in clients:
            np.testing.assert_array_equal(reader.get(id, timeout=60), content)
            copied = reader.get(id, copy=True, timeout=60)
            assert copied.flags.writeable
            np.testing.assert_array_equal(copied, content)
            room = np.empty(size, np.uint8)
            assert reader.get(id, out=room, timeout=60) is room
            np.testing.assert_array_equal(room, content)


def free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_one_byte_more_than_4_gib() -> None:
    size = 4 * GIB + 1
    if free_memory() < 2 * size + 2 * GIB:
        pytest.skip(f"needs {2 * size + 2 * GIB >> 30} GiB of free memory")
    with hoplite.LocalCluster(2, store_size="4200MiB") as cluster:
        writer, reader = cluster.connect(0), cluster.connect(1)
        with writer.create("big", size, np.uint8) as creation:
            words = creation.array[:-1].view(np.uint64)
            np.copyto(words, np.arange(512, dtype=np.uint64).repeat(len(words) // 512))
            creation.array[-1] = 255
            del words
        got = reader.get("big", timeout=250)
        assert got.shape == (size,)
        assert got[-1] == 255
        words = got[:-1].view(np.uint64)
        # Compare a part at a time. A full comparison would need as much memory again.
        for part in range(512):
            cut = len(words) // 512
            assert (words[part * cut : (part + 1) * cut] == part).all()
