"""Named tensors, as the layers of a language model have them, that tell which version they are of."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np

MATRICES = ("query", "key", "value", "output", "up", "down")
VECTORS = ("norm.weight", "norm.bias")


def add_weight_options(options: argparse.ArgumentParser) -> None:
    """How many tensors, and how large."""
    options.add_argument("--layers", type=int, default=24, help="of eight tensors each (default: 24)")
    options.add_argument("--steady", action="store_true", help="no engine leaves, and none joins")
    options.add_argument("--width", type=int, default=512, help="matrices have its square, in float32")


def weights_of(options: argparse.Namespace, version: int) -> dict[str, np.ndarray]:
    """A version of all tensors: stands for what a training step leaves."""
    shapes: dict[str, tuple[int, ...]] = {name: (options.width, options.width) for name in MATRICES}
    shapes |= {name: (options.width,) for name in VECTORS}
    return {
        f"layers.{layer}.{name}": np.full(shape, version, np.float32)
        for layer in range(options.layers)
        for name, shape in shapes.items()
    }


def version_of(weights: Mapping[str, np.ndarray]) -> int:
    """The version of these tensors; `ValueError` if they are of several."""
    versions = {float(tensor.min()) for tensor in weights.values()}
    versions |= {float(tensor.max()) for tensor in weights.values()}
    if len(versions) != 1:
        raise ValueError(f"tensors of versions {sorted(versions)} together")
    return int(versions.pop())
