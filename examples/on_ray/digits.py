"""A network with one hidden layer that reads handwritten digits: scikit-learn's, which come with it."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

PIXELS, HIDDEN, CLASSES = 64, 4096, 10

BATCH = 64

HELD_OUT = 360
"""Of 1797 images: never trained on."""


class Digits:
    """A model, see `examples.on_ray.models`."""

    rate = 0.3

    def __init__(self, seed: int) -> None:
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(images))
        self._images = (images[order] / 16).astype(np.float32)
        self._labels = labels[order]
        self._rng = np.random.default_rng(seed)

    def parameters(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        first = rng.standard_normal((PIXELS, HIDDEN)) / np.sqrt(PIXELS / 2)
        second = rng.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN)
        zeros = np.zeros(HIDDEN + CLASSES)
        return np.concatenate([first.ravel(), second.ravel(), zeros]).astype(np.float32)

    def gradient(self, parameters: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        batch = self._rng.integers(HELD_OUT, len(self._images), BATCH)
        images, labels = self._images[batch], self._labels[batch]
        first, second, bias, last_bias = _layers(parameters)
        hidden = np.maximum(images @ first + bias, 0)
        scores = hidden @ second + last_bias
        error = np.exp(scores - scores.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(BATCH), labels] -= 1
        error /= BATCH
        back = (error @ second.T) * (hidden > 0)
        parts = (images.T @ back, hidden.T @ error, back.sum(axis=0), error.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts], out=out)

    def score(self, parameters: np.ndarray) -> str:
        first, second, bias, last_bias = _layers(parameters)
        hidden = np.maximum(self._images[:HELD_OUT] @ first + bias, 0)
        guessed = (hidden @ second + last_bias).argmax(axis=1)
        return f"accuracy {np.mean(guessed == self._labels[:HELD_OUT]):.3f} on {HELD_OUT} held-out images"


def _layers(parameters: np.ndarray) -> tuple[np.ndarray, ...]:
    """Views of both layers' weights and biases."""
    ends = np.cumsum([PIXELS * HIDDEN, HIDDEN * CLASSES, HIDDEN])
    first, second, bias, last_bias = np.split(parameters, ends)
    return first.reshape(PIXELS, HIDDEN), second.reshape(HIDDEN, CLASSES), bias, last_bias
