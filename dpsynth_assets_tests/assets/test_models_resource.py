"""The life of models within a process: opened once, shared by steps, closed after the last run."""

from functools import partial

import dagster as dg
import pytest

from dpsynth_assets.models.engines import protocol as subject
from dpsynth_assets.models.engines.protocol import opened_once
from dpsynth_assets.orchestration.resources.stores import Models


@pytest.fixture
def opened(monkeypatch):
    """What a function that keeps two models has opened."""
    monkeypatch.setattr(subject, "_openers", {})
    found = []
    open_model = partial(opened_once, found.append)
    open_model.found = found
    return open_model


def a_run():
    return dg.build_resources({"models": Models()})


def test_steps_share_a_model_and_the_next_run_opens_it_anew(opened):
    for runs in (1, 2):
        with a_run():
            opened("one")
            opened("one")
        assert opened.found == ["one"] * runs


def test_a_run_that_ends_closes_nothing_that_another_uses(opened):
    with a_run():
        opened("one")
        with a_run():
            opened("one")
        opened("one")
        assert opened.found == ["one"]
    opened("one")
    assert opened.found == ["one", "one"]


def test_a_failed_run_closes_its_models(opened):
    def fails():
        opened("one")
        raise RuntimeError

    with pytest.raises(RuntimeError), a_run():
        fails()
    opened("one")
    assert opened.found == ["one", "one"]
