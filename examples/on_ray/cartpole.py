"""A policy that balances a pole on a cart, Gymnasium's CartPole, and learns from its own games.

The policy is a small network; it is padded with parameters of no use to the size of a larger one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np

INPUTS, HIDDEN, ACTIONS = 4, 32, 2
USED = INPUTS * HIDDEN + HIDDEN * ACTIONS + HIDDEN + ACTIONS

GAMES = 4
"""Played for one gradient, or one sample."""

GAMES_SCORED = 20

DISCOUNT = 0.99


def add_policy_option(options: argparse.ArgumentParser) -> None:
    """How large the policy is."""
    options.add_argument(
        "--policy-size", type=int, default=2_000_000, help="bytes that CartPole's policy is padded to"
    )


@dataclass(frozen=True)
class Samples:
    """Moves of some games, in one array each."""

    observations: np.ndarray
    actions: np.ndarray
    advantages: np.ndarray
    """How much better each move's return was than usual."""
    probabilities: np.ndarray
    """That the policy that played gave to its moves."""


class CartPole:
    """A model, see `examples.on_ray.models`: `gradient` plays and learns, or `samples` and `gradient_of`."""

    rate = 1.0

    def __init__(self, seed: int, size: int) -> None:
        """`size`: bytes of the padded policy."""
        self._length = max(USED, size // 4)
        self._rng = np.random.default_rng(seed)
        self._game = gymnasium.make("CartPole-v1")
        self._game.reset(seed=seed)

    def parameters(self) -> np.ndarray:
        parameters = np.zeros(self._length, np.float32)
        parameters[:USED] = np.random.default_rng(0).standard_normal(USED) * 0.3
        return parameters

    def gradient(self, parameters: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return self.gradient_of(parameters, [self.samples(parameters)], out)

    def samples(self, parameters: np.ndarray) -> Samples:
        """Plays some games by this policy."""
        games = [self._play(parameters) for _ in range(GAMES)]
        observations, actions, probabilities = (
            np.concatenate([game[part] for game in games]) for part in range(3)
        )
        returns = np.concatenate([_returns(len(game[1])) for game in games])
        advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
        return Samples(observations, actions, advantages.astype(np.float32), probabilities)

    def gradient_of(
        self, parameters: np.ndarray, several: Sequence[Samples], out: np.ndarray | None = None
    ) -> np.ndarray:
        """Of the mean loss of these samples; those of older policies count as far as they still fit."""
        if out is None:
            out = np.zeros(self._length, np.float32)
        else:
            out.fill(0)
        for samples in several:
            out[:USED] += _gradient(parameters, samples) / len(several)
        return out

    def score(self, parameters: np.ndarray) -> str:
        lengths = [len(self._play(parameters)[1]) for _ in range(GAMES_SCORED)]
        return f"mean return {np.mean(lengths):.0f} of {GAMES_SCORED} games"

    def _play(self, parameters: np.ndarray) -> tuple[list[np.ndarray], list[int], list[float]]:
        """Observations, actions and their probabilities of a game."""
        observations, actions, probabilities = [], [], []
        observation, _ = self._game.reset()
        over = False
        while not over:
            _, chances = _chances(parameters, observation[np.newaxis])
            action = int(self._rng.random() > chances[0, 0])
            observations.append(observation)
            actions.append(action)
            probabilities.append(float(chances[0, action]))
            observation, _, fell, timed_out, _ = self._game.step(action)
            over = fell or timed_out
        return observations, actions, probabilities


def _returns(moves: int) -> np.ndarray:
    """Discounted, of each move of a game: every move earns 1."""
    left = np.arange(moves, 0, -1)
    returns: np.ndarray = (1 - DISCOUNT**left) / (1 - DISCOUNT)
    return returns


def _gradient(parameters: np.ndarray, samples: Samples) -> np.ndarray:
    _, second, _, _ = _layers(parameters)
    hidden, chances = _chances(parameters, samples.observations)
    moves = np.arange(len(samples.actions))
    fit = np.minimum(chances[moves, samples.actions] / samples.probabilities, 1)
    error = chances.copy()
    error[moves, samples.actions] -= 1
    error *= (fit * samples.advantages / len(moves))[:, np.newaxis]
    back = (error @ second.T) * (1 - hidden**2)
    parts = (samples.observations.T @ back, hidden.T @ error, back.sum(axis=0), error.sum(axis=0))
    return np.concatenate([part.ravel() for part in parts])


def _chances(parameters: np.ndarray, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden layer, and the probability of each action."""
    first, second, bias, last_bias = _layers(parameters)
    hidden = np.tanh(observations @ first + bias)
    scores = hidden @ second + last_bias
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


def _layers(parameters: np.ndarray) -> tuple[np.ndarray, ...]:
    """Views of both layers' weights and biases."""
    ends = np.cumsum([INPUTS * HIDDEN, HIDDEN * ACTIONS, HIDDEN])
    first, second, bias, last_bias = np.split(parameters[:USED], ends)
    return first.reshape(INPUTS, HIDDEN), second.reshape(HIDDEN, ACTIONS), bias, last_bias
