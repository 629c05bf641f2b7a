"""kill -9 of a step, of a run worker, and of two runs at once: one charge, one value."""

import json
import os
import signal

import pytest

from dpsynth_assets_tests.children import until
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

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", [BEFORE, MARKED, PAID, RESERVED, PASS, DRAWN, STORED, COMMITTED])
def test_a_killed_run_is_continued_under_its_own_charge(house, point):
    house.killed_at(point)
    kept = {
        path.name: path.read_bytes() for path in house.home.glob("sensitive/*/passes/*/[0-9]*.json")
    }
    retried = house.run()
    assert retried["success"], retried["failures"]
    house.assert_whole(charges=1, released=1)
    (reservation,) = {entry.reservation for entry in house.ledger().entries()}
    drawn = house.store.load(reservation)[0]["dp_counts"]
    for name, content in kept.items():
        assert drawn[int(name.split(".")[0])] == json.loads(content)["dp_counts"]


def test_a_killed_step_fails_its_run_and_a_retry_from_failure_pays_nothing(house):
    house.variables["FAULTS_EXECUTOR"] = "multiprocess"
    house.hold(PASS)
    run = house.spawn()
    step = run.at(PASS)
    assert step != run.pid
    os.kill(step, signal.SIGKILL)
    outcome = run.outcome()
    assert not outcome["success"]
    assert "terminated by signal 9" in " ".join(outcome["events"])
    house.forget_marks()
    retried = house.run(FAULTS_EXECUTOR="in_process", FAULTS_RETRY_OF=outcome["run_id"])
    assert retried["success"], retried["failures"]
    house.assert_whole(charges=1, released=1)


def test_a_step_that_outlives_its_run_worker_is_waited_for_and_its_value_used(house):
    house.variables["FAULTS_EXECUTOR"] = "multiprocess"
    house.hold(DRAWN)
    run = house.spawn()
    orphan = run.at(DRAWN)
    run.kill()
    retry = house.start(FAULTS_EXECUTOR="in_process")
    until(lambda: len(house.passed(BEFORE)) == 2, "the retry did not start")
    house.free(DRAWN)
    retried = retry.outcome()
    assert retried["success"], retried["failures"]
    house.assert_whole(charges=1, released=1)
    assert house.passed(STORED) == [orphan] or house.passed(RESERVED) == [orphan, retry.pid]


@pytest.mark.parametrize("database", ["a file", "a server"])
def test_two_people_who_launch_the_same_cohort_at_once_pay_once(house, request, database):
    if database == "a server":
        house.variables["DPSYNTH_LEDGER_URL"] = request.getfixturevalue("postgres_url")
    house.hold(PASS)
    runs = [house.start(), house.start()]
    house.wait_for(PASS)
    # One draws and is held: the other is let go only once it has said that it waits.
    until(lambda: "nothing is paid twice" in house.said(), "the second did not say that it waits")
    house.free(PASS)
    outcomes = [run.outcome() for run in runs]
    assert [outcome["success"] for outcome in outcomes] == [True, True]
    house.assert_whole(charges=1, released=1)
    assert len(house.passed(RESERVED)) == 1
    assert sorted(outcome["metadata"]["dpsynth/reused"] for outcome in outcomes) == [False, True]
    warnings = " ".join(warning for outcome in outcomes for warning in outcome["warnings"])
    assert "nothing is paid twice" in warnings
