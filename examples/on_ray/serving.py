"""Serving by an ensemble, on Ray Serve: every model sees each batch of images, and the majority decides.

    python -m examples.on_ray.serving

Needs Ray Serve: `pip install "ray[serve]"`.
"""

from __future__ import annotations

import argparse
import asyncio

import hoplite.ray
import numpy as np
import ray
from ray import serve

from examples.on_ray.images import Classifier, Images, majority
from examples.on_ray.options import cluster, parser, rounds


class Model:
    """One of the ensemble."""

    def __init__(self, seed: int) -> None:
        self._classifier = Classifier(seed)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """The class of each image."""
        return self._classifier.classes(images)


class Ensemble:
    """Hands images on, and counts votes."""

    def __init__(self, *models: serve.handle.DeploymentHandle) -> None:
        self._models = models

    async def __call__(self, images: list[ray.ObjectRef]) -> np.ndarray:
        """The class of each image. In a list: the reference is handed on, the images do not come here."""
        return majority(await asyncio.gather(*(model.remote(images[0]) for model in self._models)))


def main() -> None:
    """Serve some batches, and tell how many images were told right."""
    ask(parser(__doc__, rounds=10).parse_args())


def ask(options: argparse.Namespace) -> None:
    """Who has the images, and asks."""
    hoplite.ray.init(**cluster(options))
    serve.start(proxy_location="Disabled")
    models = [serve.deployment(Model, name=f"model-{seed}").bind(seed) for seed in range(options.workers)]
    ensemble = serve.deployment(Ensemble, ray_actor_options={"num_cpus": 0}).bind(*models)
    asked = serve.run(ensemble, route_prefix=None)
    images = Images()
    right = 0
    for _ in rounds(options):
        batch, classes = images.batch()
        told = asked.remote([ray.put(batch)]).result()
        right += int(np.count_nonzero(told == classes))
    print(f"{right / (options.rounds * len(classes)):.3f} of the images told right")
    serve.shutdown()
    hoplite.ray.shutdown()


if __name__ == "__main__":
    main()
