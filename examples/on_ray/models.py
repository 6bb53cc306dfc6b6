"""What is trained: a network on real data, games, or stand-ins as large as well-known networks.

All parameters of a model are one flat float32 array, and so is a gradient.
"""

from __future__ import annotations

import argparse
import time
from typing import Protocol

import numpy as np

from examples.on_ray.cartpole import CartPole, add_policy_option
from examples.on_ray.digits import Digits

SIZES = {"tiny": 4_000_000, "resnet50": 102_000_000, "alexnet": 244_000_000, "vgg16": 553_000_000}
"""Bytes of the parameters of networks that are stood in for."""

CHUNK = 1 << 16
"""Parameters that a step takes at once: what it makes on the way stays in a processor's cache."""


def step(
    parameters: np.ndarray, rate: float, gradient: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray:
    """`parameters` less `rate` times `gradient`: in `out`, or else in place."""
    stepped = parameters if out is None else out
    scaled = np.empty(CHUNK, parameters.dtype)
    for start in range(0, len(parameters), CHUNK):
        part = slice(start, start + CHUNK)
        some = np.multiply(gradient[part], rate, out=scaled[: len(gradient[part])])
        np.subtract(parameters[part], some, out=stepped[part])
    return stepped


class Model(Protocol):
    """What a worker computes with, and the server measures with."""

    rate: float
    """Of learning: what a step takes of a gradient."""

    def parameters(self) -> np.ndarray:
        """To begin with."""

    def gradient(self, parameters: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Of the loss, on this model's next batch; in `out`, if that is given."""

    def score(self, parameters: np.ndarray) -> str:
        """How good these parameters are, in words."""


class StandIn:
    """Sleeps instead of computing: each gradient is 1 everywhere."""

    rate = 1.0

    def __init__(self, size: int, seconds: float) -> None:
        self._length = size // 4
        self._seconds = seconds
        self._gradient = np.empty(0, np.float32)

    def parameters(self) -> np.ndarray:
        return np.zeros(self._length, np.float32)

    def gradient(self, parameters: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        began = time.monotonic()
        if out is None:
            # Always the same one: fresh memory is slow.
            if not len(self._gradient):
                self._gradient = np.ones(self._length, np.float32)
            out = self._gradient
        else:
            out.fill(1)
        # Writing it is part of computing it.
        time.sleep(max(self._seconds - (time.monotonic() - began), 0))
        return out

    def score(self, parameters: np.ndarray) -> str:
        # Of a mean of gradients that are all 1.
        steps = -parameters[0]
        return f"all parameters are {-steps:g}: {np.all(parameters == -steps)}"


def add_model_options(options: argparse.ArgumentParser) -> None:
    """Which model, and how large."""
    options.add_argument("--model", choices=["digits", "cartpole", *SIZES], default="digits")
    options.add_argument(
        "--compute", type=float, default=0.1, help="seconds a stand-in sleeps for a gradient"
    )
    add_policy_option(options)


def model_of(options: argparse.Namespace, seed: int) -> Model:
    """The model asked for; `seed` decides on its batches, not on its first parameters."""
    if options.model == "digits":
        return Digits(seed)
    if options.model == "cartpole":
        return CartPole(seed, options.policy_size)
    return StandIn(SIZES[options.model], options.compute)
