"""A short soak: `make soak-ray` runs the long one, and looks at memory too."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ray_cluster import IGNORED, RayCluster
from soak_ray import joined, soak

pytestmark = IGNORED

OBJECTS = 400


# Alone it passes; behind all others of the same cluster something stays in a node, and is not found yet.
@pytest.mark.xfail(reason="what other tests of the same cluster leave in a node", strict=False)
def test_hundreds_of_objects_leave_nothing(ray_cluster: RayCluster) -> None:
    with joined(ray_cluster, plain=False):
        soak(ray_cluster, OBJECTS, waves=1)
