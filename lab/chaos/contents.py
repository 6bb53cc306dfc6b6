"""The content of each object. It follows from the object's name alone, so that any reader can check it.

All numbers are whole and small, so that every order of addition gives the same bits. The first element of
each source is a different power of two. In a sum these add up to the *mask* of its sources. So the reader of
a first-k reduction knows which sources are in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Array elements are below this, so that sums of ``BITS_MAX`` of them are exact even in float32.
VALUE_MAX = 4096

#: Most sources of a result. 2 ** 16 and sums of 16 values are exact in float32.
BITS_MAX = 16

#: The folds of two arrays, for the operations whose result does not show its sources.
FOLDS: dict[str, Any] = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}


class WrongContent(Exception):
    """An object's bytes are wrong. The message says where and how."""


@dataclass(frozen=True)
class Leaf:
    """An object that is put: plain bytes, or an array with its own bit of the mask."""

    name: str
    count: int
    dtype: str | None = None
    bit: int | None = None

    @property
    def size(self) -> int:
        return self.count * np.dtype(self.dtype or "uint8").itemsize

    def array(self) -> Array:
        """The content."""
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        if self.dtype is None:
            return random.integers(0, 256, self.count, np.uint8)
        array: Array = random.integers(0, VALUE_MAX, self.count, np.uint16).astype(self.dtype)
        if self.bit is not None:
            array[0] = 1 << self.bit
        return array


@dataclass(frozen=True)
class Folded:
    """The result of a reduction of ``k`` of ``parts`` with ``op``. Sums may be parts of sums."""

    op: str
    k: int
    parts: tuple[Content, ...]

    @property
    def size(self) -> int:
        return self.parts[0].size


Content = Leaf | Folded


def leaves(content: Content) -> Iterator[Leaf]:
    """All put objects that may be in the content. A put object is its own only leaf."""
    if isinstance(content, Leaf):
        yield content
    else:
        for part in content.parts:
            yield from leaves(part)


def check(content: Content, array: Array) -> int:
    """Compares all of ``array``. Returns the mask of its sources (0 if it has none)."""
    first = next(leaves(content))
    wanted = np.dtype(first.dtype or "uint8")
    if array.dtype != wanted or array.shape != (first.count,):
        raise WrongContent(f"{array.dtype}{list(array.shape)} instead of {wanted}[{first.count}]")
    mask = 0
    if isinstance(content, Leaf):
        expected = content.array()
    elif content.op == "sum":
        mask = int(array[0])
        problem = _mask_problem(content, mask)
        if problem:
            raise WrongContent(f"the sources in it are {mask:#b}, as its first element says: {problem}")
        expected = fold(np.add, [leaf.array() for leaf in leaves(content) if mask >> (leaf.bit or 0) & 1])
    else:
        expected = _all_of(content)
    if not np.array_equal(array, expected):
        wrong = np.flatnonzero(array != expected)
        at = int(wrong[0])
        raise WrongContent(
            f"{len(wrong)} of {len(array)} elements are wrong, from {at} to {int(wrong[-1])}:"
            f" at {at} there is {array[at]}, not {expected[at]}"
        )
    return mask


def mask_of(content: Content) -> int:
    """All bits that may be in the mask."""
    return sum(1 << leaf.bit for leaf in leaves(content) if leaf.bit is not None)


def _all_of(content: Folded) -> Array:
    arrays = [leaf.array() for leaf in leaves(content)]
    if content.op == "mean":
        total: Array = fold(np.add, arrays)
        return (total / len(arrays)).astype(total.dtype)
    result: Array = fold(FOLDS[content.op], arrays)
    return result


def _mask_problem(content: Folded, mask: int) -> str | None:
    if mask & ~mask_of(content):
        return f"bits beyond {mask_of(content):#b}"
    inside = [part for part in content.parts if mask & mask_of(part)]
    if len(inside) != content.k:
        return f"{len(inside)} parts went in, not {content.k}"
    for part in inside:
        problem = _mask_problem(part, mask & mask_of(part)) if isinstance(part, Folded) else None
        if problem:
            return problem
    return None


def to_json(content: Content) -> list[Any]:
    if isinstance(content, Leaf):
        return ["leaf", content.name, content.count, content.dtype, content.bit]
    return ["folded", content.op, content.k, [to_json(part) for part in content.parts]]


def from_json(raw: Sequence[Any]) -> Content:
    if raw[0] == "leaf":
        return Leaf(*raw[1:])
    return Folded(raw[1], raw[2], tuple(from_json(part) for part in raw[3]))
