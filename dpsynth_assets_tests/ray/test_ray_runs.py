"""Runs whose steps are jobs of a real Ray cluster: killed anywhere, each charge is paid once."""

import json
import os
import signal

import pytest

from dpsynth_assets_tests.faults.cohort import (
    BEFORE,
    COMMITTED,
    DRAWN,
    MARKED,
    PAID,
    PASS,
    RESERVED,
    STORED,
)
from dpsynth_assets_tests.ray.conftest import SOON

pytestmark = pytest.mark.slow


def passing(*variables):
    """Run configuration under which jobs get these variables beside the product's own."""
    config = {"ray": {"env_vars": ["FAULTS_MARKS", "FAULTS_EXECUTOR", *variables]}}
    return json.dumps({"execution": {"config": config}})


@pytest.fixture
def ray_house(house, cluster):
    house.variables |= cluster.variables
    house.variables |= {"FAULTS_EXECUTOR": "declared", "DPSYNTH_EXECUTOR": "ray"}
    house.variables |= {"FAULTS_HEALTH_SECONDS": "1", **SOON}
    house.variables["FAULTS_CONFIG"] = passing()
    return house


def test_a_step_runs_in_the_cluster_and_is_charged_once(ray_house):
    run = ray_house.spawn()
    outcome = run.outcome()
    assert outcome["success"], outcome
    (step,) = ray_house.passed(COMMITTED)
    assert step != run.pid
    ray_house.assert_whole(charges=1, released=1)


@pytest.mark.parametrize("point", [BEFORE, MARKED, PAID, RESERVED, PASS, DRAWN, STORED, COMMITTED])
def test_a_step_that_is_killed_in_the_cluster_is_continued_under_its_own_charge(ray_house, point):
    ray_house.hold(point)
    run = ray_house.spawn()
    os.kill(run.at(point), signal.SIGKILL)
    outcome = run.outcome()
    assert not outcome["success"]
    ray_house.forget_marks()
    stored = ray_house.home.glob("sensitive/*/passes/*/*.json")
    kept = {path.name: path.read_bytes() for path in stored}
    retried = ray_house.spawn(FAULTS_RETRY_OF=outcome["run_id"]).outcome()
    assert retried["success"], retried
    ray_house.assert_whole(charges=1, released=1)
    (reservation,) = {entry.reservation for entry in ray_house.ledger().entries()}
    drawn = ray_house.store.load(reservation)[0]["dp_counts"]
    for name, content in kept.items():
        assert drawn[int(name.split(".")[0])] == json.loads(content)["dp_counts"]
