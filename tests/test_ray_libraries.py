"""Ray's libraries in transparent mode. Ray keeps values that they serialise without counting references."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from ray_cluster import IGNORED, TIMEOUT, copies, goes_back_to, on

ray = pytest.importorskip("ray")
cloudpickle = pytest.importorskip("ray.cloudpickle")

pytestmark = [*IGNORED, pytest.mark.usefixtures("transparent")]

LENGTH = 1 << 19
"""2 MiB of float32."""


@ray.remote
class Stage:
    def double(self, array: np.ndarray) -> np.ndarray:
        return 2 * array


def test_compiled_graphs_have_channels_of_their_own() -> None:
    from ray.dag import InputNode

    stages = [Stage.options(**on(0)).remote() for _ in range(2)]
    with InputNode() as given:
        graph = stages[1].double.bind(stages[0].double.bind(given))
    compiled = graph.experimental_compile()
    try:
        for step in range(4):
            array = np.full(LENGTH, step, np.float32)
            doubled = ray.get(compiled.execute(array), timeout=TIMEOUT)
            np.testing.assert_array_equal(doubled, 4 * array)
            assert copies() == 0
            # A channel takes the next value when all have read the last one.
            del doubled
    finally:
        # The loops wait for the next value. The graph is torn down after they end.
        for stage in stages:
            ray.kill(stage)
        compiled.teardown()


class Freezing:
    """Pickles its array inside Ray's pickling. The receiver unpickles it at any time."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __reduce__(self) -> Any:
        return Ice, (cloudpickle.dumps(self.array),)


class Ice:
    def __init__(self, frozen: bytes) -> None:
        self.frozen = frozen


def test_pickles_inside_values_have_no_handles() -> None:
    reference = ray.put(Freezing(np.ones(LENGTH, np.float32)))
    assert copies() == 0
    ice = ray.get(reference)
    del reference
    np.testing.assert_array_equal(pickle.loads(ice.frozen), np.ones(LENGTH, np.float32))


def test_ray_data_measures_the_size_of_rows() -> None:
    from ray.data._internal.size_estimator import SizeEstimator

    estimator = SizeEstimator()
    for _ in range(3):
        estimator.add({"image": np.zeros(LENGTH, np.float32)})
    assert estimator.size_bytes() > 3 * 4 * LENGTH
    goes_back_to(0)
