"""Tests all applications of examples/on_ray and their twins. `make test-ray` runs it."""

from __future__ import annotations

import pytest
from ray_cluster import IGNORED, RayCluster
from ray_programs import number, output_of

pytest.importorskip("ray")
pytest.importorskip("gymnasium")
pytest.importorskip("sklearn")

pytestmark = IGNORED


@pytest.mark.parametrize("program", ["async_sgd", "async_sgd_plain", "sync_training", "sync_training_plain"])
def test_every_gradient_counts_once(ray_cluster: RayCluster, program: str) -> None:
    printed = output_of(ray_cluster, program, "--rounds", "6", "--model", "tiny", "--compute", "0.01")
    assert "all parameters are -6: True" in printed


@pytest.mark.parametrize("program", ["async_sgd_plain", "sync_training", "sync_training_plain"])
def test_training_reads_digits(ray_cluster: RayCluster, program: str) -> None:
    printed = output_of(ray_cluster, program, "--rounds", "80")
    assert number(r"accuracy ([\d.]+) on 360", printed) > 0.9


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("async_sgd", ["--model", "cartpole"]), ("impala", []), ("impala_plain", [])],
)
def test_games_are_learnt(ray_cluster: RayCluster, program: str, arguments: list[str]) -> None:
    printed = output_of(ray_cluster, program, "--rounds", "100", *arguments)
    # The mean return is about 20 before training, and 500 at most.
    assert number(r"mean return (\d+) of", printed) > 60


@pytest.mark.parametrize("program", ["weight_sync", "weight_sync_plain"])
def test_joining_engines_have_the_newest_weights(ray_cluster: RayCluster, program: str) -> None:
    printed = output_of(ray_cluster, program, "--layers", "4", "--rounds", "8")
    assert "have version 8" in printed


@pytest.mark.parametrize("program", ["serving", "serving_plain"])
def test_an_ensemble_tells_digits_apart(ray_cluster: RayCluster, program: str) -> None:
    pytest.importorskip("ray.serve")
    printed = output_of(ray_cluster, program, "--rounds", "3")
    assert number(r"([\d.]+) of the images", printed) > 0.8
