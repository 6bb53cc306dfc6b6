"""Images to be told apart, handwritten digits blown up, and the classifiers of an ensemble.

scikit-learn's digits come with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

BATCH, SIDE, CHANNELS = 64, 256, 3

DIGIT_SIDE = 8
BLOCK = SIDE // DIGIT_SIDE
"""Pixels of an image in each direction for one of a digit."""

CLASSES = 10

HELD_OUT = 360
"""Digits of 1797 that no classifier has learnt from."""

LEARNT = 200
"""Digits that each classifier learns from, its own: too few to be good alone."""


class Images:
    """Batches of digits that no classifier has seen."""

    def __init__(self) -> None:
        self._digits, self._classes = _digits()
        self._rng = np.random.default_rng(0)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """`BATCH` images of 256 x 256 pixels in float32, 50 MB, and their classes."""
        chosen = self._rng.integers(0, HELD_OUT, BATCH)
        pixels = self._digits[chosen].reshape(BATCH, DIGIT_SIDE, DIGIT_SIDE)
        blown_up = pixels.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)
        return np.repeat(blown_up[..., np.newaxis], CHANNELS, axis=3), self._classes[chosen]


class Classifier:
    """One of many, each of which has learnt from digits of its own."""

    def __init__(self, seed: int) -> None:
        digits, classes = _digits()
        chosen = np.random.default_rng(seed).integers(HELD_OUT, len(digits), LEARNT)
        self._model = LogisticRegression(max_iter=1000).fit(digits[chosen], classes[chosen])

    def classes(self, images: np.ndarray) -> np.ndarray:
        """The class of each image, by the pixels in the middles of its blocks."""
        middles = images[:, BLOCK // 2 :: BLOCK, BLOCK // 2 :: BLOCK, 0]
        classes: np.ndarray = self._model.predict(middles.reshape(len(images), -1))
        return classes


def majority(votes: Sequence[np.ndarray]) -> np.ndarray:
    """What most say of each image; of several classes with as many votes, the first."""
    counts = np.eye(CLASSES, dtype=int)[np.stack(votes)].sum(axis=0)
    classes: np.ndarray = counts.argmax(axis=1)
    return classes


def _digits() -> tuple[np.ndarray, np.ndarray]:
    digits, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    return (digits[order] / 16).astype(np.float32), classes[order]
