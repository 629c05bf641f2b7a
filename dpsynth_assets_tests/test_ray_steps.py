"""What the executor `ray` passes to its jobs, and what it refuses before the first."""

from types import SimpleNamespace

import dagster as dg
import pytest

from dpsynth_assets.orchestration.resources import executors
from dpsynth_assets.orchestration.resources.executors import (
    GROWS_VARIABLE,
    PASSED,
    refuse_what_no_node_can_run,
    with_settings_passed,
)
from dpsynth_assets.privacy.errors import PrivacyError


def plan(*gpus):
    steps = [
        SimpleNamespace(
            key=f"step{number}",
            tags={"dagster-ray/config": f'{{"num_gpus": {asked}}}'} if asked else {},
        )
        for number, asked in enumerate(gpus)
    ]
    return SimpleNamespace(get_all_steps_in_topo_order=lambda: steps)


def test_settings_are_passed_and_secrets_are_not(monkeypatch):
    for name in (*PASSED, "DPSYNTH_LEDGER_URL", "DPSYNTH_SENSITIVE_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "value")
    monkeypatch.delenv("DPSYNTH_GPU")
    config = with_settings_passed({"ray": {"address": "http://head:8265", "env_vars": ["OWN=1"]}})
    assert config["ray"]["address"] == "http://head:8265"
    assert config["ray"]["env_vars"] == [
        *(set_ for set_ in PASSED if set_ != "DPSYNTH_GPU"),
        "OWN=1",
    ]
    assert with_settings_passed({})["ray"]["env_vars"]


@pytest.mark.parametrize(("asked", "has"), [((0, 1), [0]), ((2,), [1, 1]), ((1,), [])])
def test_a_step_that_no_node_can_run_is_refused(asked, has, monkeypatch):
    monkeypatch.delenv(GROWS_VARIABLE, raising=False)
    monkeypatch.setattr(executors, "_gpus_of_nodes", lambda _: has)
    with pytest.raises(dg.Failure) as refusal:
        refuse_what_no_node_can_run(plan(*asked), None)
    told = refusal.value.description
    assert (
        f"{max(asked)} GPU(s) for step{len(asked) - 1}, got at most {max(has, default=0)}" in told
    )
    assert "device: cpu" in told
    monkeypatch.setenv(GROWS_VARIABLE, "1")
    refuse_what_no_node_can_run(plan(*asked), None)


@pytest.mark.parametrize(("asked", "has"), [((0, 0), None), ((1, 0), [0, 1]), ((), None)])
def test_what_fits_a_node_is_run(asked, has, monkeypatch):
    monkeypatch.setattr(executors, "_gpus_of_nodes", lambda _: has)
    refuse_what_no_node_can_run(plan(*asked), None)


def test_an_address_with_a_key_is_not_passed(monkeypatch):
    monkeypatch.setenv("DPSYNTH_STORE_URL", "s3://KEY:SECRET@bucket/prefix")
    with pytest.raises(PrivacyError, match="DPSYNTH_STORE_URL") as refused:
        with_settings_passed({})
    assert "SECRET" not in str(refused.value)
