"""A network with one hidden layer, its parameters in one flat vector: that is what travels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HIDDEN = 512
CLASSES = 10
PIXELS = 64

_SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
PARAMETERS = sum(int(np.prod(shape)) for shape in _SHAPES)


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 8 x 8 handwritten digits, scaled to 0..1 and split."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def digits() -> Digits:
    """The same split in every process; a quarter is for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = (data.data[order] / 16).astype(np.float32)
    y = data.target[order]
    cut = len(y) * 3 // 4
    return Digits(x[:cut], y[:cut], x[cut:], y[cut:])


def initial_weights() -> np.ndarray:
    """He's initialisation, as one vector of `PARAMETERS` float32."""
    rng = np.random.default_rng(1)
    parts = [
        rng.standard_normal(shape, np.float32) * np.sqrt(2 / shape[0]) if len(shape) == 2 else np.zeros(shape)
        for shape in _SHAPES
    ]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """The cross-entropy's gradient over a batch, written to `out`."""
    w1, b1, w2, b2 = _parts(weights)
    hidden = np.maximum(x @ w1 + b1, 0)
    delta = _softmax(hidden @ w2 + b2)
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    back = (delta @ w2.T) * (hidden > 0)
    for part, value in zip(
        _parts(out), (x.T @ back, back.sum(0), hidden.T @ delta, delta.sum(0)), strict=True
    ):
        part[...] = value


def accuracy(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """The fraction of `x` that is classified as `y`."""
    w1, b1, w2, b2 = _parts(weights)
    return float(np.mean(np.argmax(np.maximum(x @ w1 + b1, 0) @ w2 + b2, axis=1) == y))


def _parts(vector: np.ndarray) -> list[np.ndarray]:
    parts, end = [], 0
    for shape in _SHAPES:
        start, end = end, end + int(np.prod(shape))
        parts.append(vector[start:end].reshape(shape))
    return parts


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
