"""A short soak. `make soak-ray` runs the long one, which checks memory too."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ray_cluster import IGNORED, RayCluster
from soak_ray import joined, soak

pytestmark = IGNORED

OBJECTS = 400


def test_hundreds_of_objects_leave_nothing(ray_cluster: RayCluster) -> None:
    with joined(ray_cluster, plain=False):
        soak(ray_cluster, OBJECTS, waves=1)
