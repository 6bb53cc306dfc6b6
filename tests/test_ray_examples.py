"""One application of examples/on_ray runs. All differ from plain Ray by a few lines."""

from __future__ import annotations

import pytest
from ray_cluster import IGNORED, RayCluster
from ray_programs import ROOT, number, output_of

pytest.importorskip("ray")
pytest.importorskip("gymnasium")
pytest.importorskip("sklearn")

from examples.on_ray import differences

pytestmark = IGNORED


def test_asynchronous_training_reads_digits(ray_cluster: RayCluster) -> None:
    printed = output_of(ray_cluster, "async_sgd", "--rounds", "80")
    assert number(r"accuracy ([\d.]+) on 360", printed) > 0.9


@pytest.mark.parametrize("name", differences.names())
def test_the_documentation_has_the_number_of_different_lines(name: str) -> None:
    gone, come = differences.lines_changed(name)
    assert f"| `{name}` | {come} for {gone} |" in (ROOT / "docs" / "ray.md").read_text()
    assert come <= 6
