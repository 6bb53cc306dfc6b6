"""The shape of IMPALA: actors play and send what they saw, one learner learns and sends new policies.

    python -m examples.on_ray.impala

The learner learns from whichever half of the actors is done first, and those get the new policy.
"""

from __future__ import annotations

import argparse

import hoplite.ray
import numpy as np
import ray

from examples.on_ray.cartpole import CartPole, Samples, add_policy_option
from examples.on_ray.models import step
from examples.on_ray.options import cluster, parser, rounds


class Actor:
    """Plays games."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self._model = CartPole(seed, options.policy_size)

    def samples(self, policy: np.ndarray) -> Samples:
        """Of some games by this policy."""
        return self._model.samples(policy)


def main() -> None:
    """Learn, and tell how good the policy has become."""
    options = parser(__doc__, rounds=100)
    add_policy_option(options)
    learn(options.parse_args())


def learn(options: argparse.Namespace) -> None:
    """The learner."""
    hoplite.ray.init(**cluster(options))
    model = CartPole(0, options.policy_size)
    half = max(options.workers // 2, 1)
    policy = model.parameters()
    sent = ray.put(policy)
    actors = [
        ray.remote(Actor).options(num_cpus=1, scheduling_strategy="SPREAD").remote(options, seed)
        for seed in range(1, options.workers + 1)
    ]
    playing = {actor.samples.remote(sent): actor for actor in actors}
    for _ in rounds(options):
        ready, _ = ray.wait(list(playing), num_returns=half)
        step(policy, model.rate, model.gradient_of(policy, ray.get(ready)))
        sent = ray.put(policy)
        for samples in ready:
            actor = playing.pop(samples)
            playing[actor.samples.remote(sent)] = actor
    print(model.score(policy))
    hoplite.ray.shutdown()


if __name__ == "__main__":
    main()
