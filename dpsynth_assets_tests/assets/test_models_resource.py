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


def job(open_model, between=lambda: None):
    @dg.op
    def first(models: Models):
        open_model("one")

    @dg.op(ins={"start": dg.In(dg.Nothing)})
    def second(models: Models):
        open_model("one")
        between()

    @dg.job(resource_defs={"models": Models()})
    def both():
        second(first())

    return both


def test_steps_share_a_model_and_the_next_run_opens_it_anew(opened):
    both = job(opened)
    both.execute_in_process()
    assert opened.found == ["one"]
    both.execute_in_process()
    assert opened.found == ["one", "one"]


def test_a_run_that_ends_closes_nothing_that_another_uses(opened):
    inner = job(opened)
    outer = job(opened, between=inner.execute_in_process)
    outer.execute_in_process()
    assert opened.found == ["one"]
    opened("one")
    assert opened.found == ["one", "one"]


def test_a_failed_run_closes_its_models(opened):
    def fail():
        raise RuntimeError

    job(opened, between=fail).execute_in_process(raise_on_error=False)
    opened("one")
    assert opened.found == ["one", "one"]
