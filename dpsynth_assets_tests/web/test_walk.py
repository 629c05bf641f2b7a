"""The walk of a newcomer through the web UI, in a real browser against `make ui`.

Pictures lie in DPSYNTH_WALK_OUTPUT, or in the test's own folder; look at them.
"""

import os
from pathlib import Path

import pytest

from dpsynth_assets_tests.web.walk import MissingToolError, find_browser, walk_through

STEPS = (
    "graph",
    "data_flow",
    "mechanism_explained",
    "materialise",
    "progress",
    "finished",
    "schedule",
    "privacy_levels",
    "spend",
    "corpus",
    "samples",
    "plots",
    "evaluation",
    "launchpad_refuses",
    "blocked",
    "blocking_check",
    "downstream_stopped",
    "skip_reason",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    try:
        browser = find_browser()
    except MissingToolError as missing:
        pytest.skip(f"the walk needs a browser: {missing}")
    folder = tmp_path_factory.mktemp("walk")
    output = Path(os.environ.get("DPSYNTH_WALK_OUTPUT", folder / "pictures"))
    return {step.name: step for step in walk_through(folder, output, browser)}


@pytest.mark.parametrize("name", STEPS)
def test_a_newcomer_sees(steps, name):
    assert name in steps, f"the walk ended before {name}"
    assert steps[name].failure is None, f"{steps[name].failure}; look at {steps[name].picture}"


def test_the_walk_is_tested_step_by_step(steps):
    assert tuple(steps) == STEPS
