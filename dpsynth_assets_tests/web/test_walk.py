"""The walks of three people through the web UI, in a real browser against `make ui`.

Pictures lie in DPSYNTH_WALK_OUTPUT, or in the test's own folder; look at them.
"""

import os
from pathlib import Path

import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets_tests.end_to_end.conftest import keep_audits
from dpsynth_assets_tests.prepared import keep_demo_plans
from dpsynth_assets_tests.web.accessible import look_at_pages
from dpsynth_assets_tests.web.house import COHORT, _letters
from dpsynth_assets_tests.web.recording import CAPTIONS
from dpsynth_assets_tests.web.walk import MissingToolError, find_browser, walk_through

STEPS = tuple(CAPTIONS)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    try:
        return find_browser()
    except MissingToolError as missing:
        pytest.skip(f"the walk needs a browser: {missing}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    keep_demo_plans(tmp_path_factory, folder / "home")
    declared = PrivateDatasetSpec.model_validate(_letters(folder))
    keep_audits(tmp_path_factory, folder / "home", declared)
    return folder


@pytest.fixture(scope="module")
def output(folder):
    return Path(os.environ.get("DPSYNTH_WALK_OUTPUT", folder / "pictures"))


@pytest.fixture(scope="module")
def steps(browser, folder, output):
    return {step.name: step for step in walk_through(folder, output, browser)}


@pytest.mark.parametrize("name", STEPS)
def test_a_person_sees(steps, name):
    assert name in steps, f"the walk ended before {name}"
    assert steps[name].failure is None, f"{steps[name].failure}; look at {steps[name].picture}"


def test_an_auditor_has_all_five_answers_within_three_clicks(steps):
    assert 1 <= steps["five_questions"].clicks <= 3


@pytest.mark.usefixtures("steps")
def test_written_pages_fit_every_screen_and_every_reader(browser, folder, output):
    reports = folder / "home" / "reports"
    written = ["budgets.html", f"{COHORT}/report.html", f"{COHORT}/audit_trail.html"]
    written.append(f"{COHORT}/officer_pack/officer_pack.html")
    looks = look_at_pages([reports / name for name in written], output / "pages", browser)
    assert len(looks) == len(written) * len(["light 1280", "light 1600", "light 390", "dark 1280"])
    assert [look for look in looks if look.overflow or look.violations] == []
    assert [look for look in looks if look.scrolling and look.width >= 1280] == []


def test_the_walk_is_tested_step_by_step(steps):
    assert tuple(steps) == STEPS
