"""Laws of schedules: what they ask for, when they refuse, and what a wrong file says."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._utils.schedules import is_valid_cron_string
from pydantic import ValidationError

from dpsynth_assets.cli.datasets import method_problems
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods import plan_cache
from dpsynth_assets.methods.fine_tuning import private_training
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.launch import refusal_of
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.paths import signing_key
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.ledger import Reservation
from dpsynth_assets.privacy.ledger.actors import make_key
from dpsynth_assets.privacy.renyi import zcdp_rho
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters, loaded, pay_for
from dpsynth_assets_tests.privacy.ledger_cases import make_request

pytestmark = pytest.mark.usefixtures("own_home")

MIDNIGHT = datetime(2026, 11, 1, 3, tzinfo=UTC)


def spec_with(**changes) -> PrivateDatasetSpec:
    return letters(**{"schedule": {"cron": "0 3 1 * *"}, **changes})


def tick(spec: PrivateDatasetSpec, at: datetime = MIDNIGHT):
    schedule = loaded(spec).resolve_schedule_def(f"regenerate_{spec.name}_schedule")
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(
            instance=instance, scheduled_execution_time=at, resources={"ledger": PrivacyLedger()}
        )
        return schedule.evaluate_tick(context)


def charge(spec: PrivateDatasetSpec, noise_multiplier: float, *, killed: bool = False) -> None:
    """Charges the cohort something, as an earlier run would have."""
    plan = plan_dataset(spec)
    request = make_request(
        cohort=spec.name,
        dataset=spec.name,
        asset="letters/mean_uniform/candidate_corpus",
        event=GaussianEvent(noise_multiplier=noise_multiplier),
        release="earlier",
    )
    book = PrivacyLedger().open()
    reservation = book.reserve(request, plan.budget)
    if not killed:
        book.commit(reservation, artifact_digest="0" * 64, artifact_uri="nowhere")


# What is asked for


def test_a_tick_asks_for_a_release_named_after_its_time():
    (request,) = tick(spec_with()).run_requests
    assert request.run_key == "letters:2026-11-01T03:00Z"
    assert request.tags["dpsynth/release"] == "2026-11-01T03:00Z"
    assert request.tags["dpsynth/cohort"] == "letters"
    assert 0 < float(request.tags["dpsynth/planned_epsilon"]) <= spec_with().budget.epsilon
    assert request.tags["dpsynth/epsilon"] == "0"


def test_an_hour_that_the_clock_shows_twice_has_two_names():
    ticks = [
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=n) for n in (0, 1)
    ]
    names = [tick(spec_with(), at).run_requests[0].tags["dpsynth/release"] for at in ticks]
    assert names == ["2026-10-25T00:30Z", "2026-10-25T01:30Z"]


def test_a_tick_goes_on_with_a_killed_draw_before_it_pays_for_another():
    """Also where the budget holds no other round: this one is paid for."""
    charge(spec_with(), noise_multiplier=0.16, killed=True)
    (request,) = tick(spec_with()).run_requests
    assert request.run_key == "letters:2026-11-01T03:00Z"
    assert request.tags["dpsynth/release"] == "earlier"
    book = PrivacyLedger().open()
    (lost,) = book.provenance().charges.values()
    book.commit(Reservation(lost.reservation, lost.request()), artifact_digest="", artifact_uri="")
    assert not tick(spec_with()).run_requests


def test_a_charge_that_was_made_again_is_waited_for_by_no_tick():
    """As where what the killed run kept is lost: the later charge of that name is the release."""
    charge(spec_with(), noise_multiplier=2.0, killed=True)
    charge(spec_with(), noise_multiplier=2.1)
    (request,) = tick(spec_with()).run_requests
    assert request.tags["dpsynth/release"] == "2026-11-01T03:00Z"


def test_a_tick_is_skipped_until_others_have_approved():
    make_key(signing_key())
    spec = spec_with(approvals=1, approvers=[f"ed25519:{'0' * 64}"])
    data = tick(spec)
    assert not data.run_requests
    assert data.skip_message.startswith("Expected 1 approvals of plan ")
    assert not PrivacyLedger().open().entries()


def test_releases_that_fit_one_by_one_and_not_together_are_refused():
    settings = {"expected_batch_size": 64}
    methods = [{"method": "mean_uniform", "name": name, "settings": settings} for name in "ab"]
    budget = {"epsilon": 60.0, "delta": 1e-6, "rounds": 4}
    spec, ledger = spec_with(methods=methods, budget=budget), PrivacyLedger().open()
    plan = plan_dataset(spec)
    spent = 0.8 * zcdp_rho(60.0, 1e-6)  # A round is a quarter, each of the two an eighth.
    charge(spec, noise_multiplier=(2 * spent) ** -0.5)
    assert refusal_of(spec, plan, plan.methods[:1], ledger, "r") is None
    assert refusal_of(spec, plan, plan.methods[1:], ledger, "r") is None
    told = refusal_of(spec, plan, plan.methods, ledger, "r")
    assert "would overspend" in told
    assert all(f"letters/{name}/" in told for name in "ab")


def test_only_the_named_methods_are_made_again():
    methods = [
        {"method": "mean_uniform", "budget_share": 0.4},
        {"method": "mean_uniform", "name": "other", "budget_share": 0.4},
    ]
    named = spec_with(methods=methods, schedule={"cron": "0 3 1 * *", "methods": ["other"]})
    job = definitions_of(named).resolve_job_def("regenerate_letters")
    keys = {key.path[1] for key in job.asset_layer.executable_asset_keys}
    assert "other" in keys
    assert not keys & {"mean_uniform", "shared"}


def test_rows_of_the_file_are_asked_of_the_corpora_whose_rows_are_free(monkeypatch):
    """Asked of methods that take no number of rows, they are a problem of the file."""
    # As if the noise of a training had been calibrated: that takes seconds.
    monkeypatch.setattr(private_training, "sampled_noise", lambda *_, **__: 2.0)
    monkeypatch.setattr(plan_cache, "remembered_epsilon", lambda *_: 1.0)
    methods = [{"method": "dp_fine_tuning", "settings": {"rows": 100}}]
    writer = {"public_facts": {"records": 5000}, "methods": methods}
    asked = {"schedule": {"cron": "0 3 1 * *", "rows": 250}}
    (request,) = tick(spec_with(**writer)).run_requests
    assert not request.run_config, "the method's settings decide"
    (request,) = tick(spec_with(**writer, **asked)).run_requests
    config = request.run_config["ops"]["letters__dp_fine_tuning__candidate_corpus"]["config"]
    assert config == {"rows": 250}
    job = definitions_of(spec_with(**writer, **asked)).resolve_job_def("regenerate_letters")
    assert dg.validate_run_config(job, request.run_config)
    assert method_problems(spec_with(**writer, **asked)) == []
    (problem,) = method_problems(spec_with(**asked))
    assert (problem.field, problem.got) == ("schedule.rows", "mean_uniform")


# What a wrong file says


@pytest.mark.parametrize("zone", ["", "../etc/passwd", "Europe", "Mars/Olympus"])
def test_a_time_zone_that_is_none_is_refused(zone):
    with pytest.raises(ValidationError, match="a time zone of the IANA database"):
        spec_with(schedule={"cron": "0 3 1 * *", "timezone": zone})


@pytest.mark.parametrize(
    ("cron", "zone"), [(["0 3 1 * *", "@weekly"], "UTC"), ("30 2 * * mon", "Europe/Berlin")]
)
def test_a_schedule_starts_switched_off_with_its_expressions_and_zone(cron, zone):
    spec = spec_with(schedule={"cron": cron, "timezone": zone})
    schedule = definitions_of(spec).resolve_schedule_def("regenerate_letters_schedule")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert (schedule.cron_schedule, schedule.execution_timezone) == (cron, zone)


GOOD = ["0 3 1 * *", "1,2 0-5/2 * jan-mar mon", "@monthly", "0 3 L * *", "0 3 * * 5#1"]
BAD = ["60 * * * *", "", "0 3 1 * * *", "@reboot", "0 0 31 4,6 *", "0 0 30 2 mon", "h 0 * * *"]


@pytest.mark.parametrize("cron", GOOD)
def test_cron_that_the_orchestrator_takes_is_taken(cron):
    assert spec_with(schedule={"cron": cron}).schedule.cron == cron
    assert is_valid_cron_string(cron)


@pytest.mark.parametrize("cron", [*BAD, [GOOD[0], BAD[0]], []])
def test_a_wrong_expression_or_none_is_refused(cron):
    with pytest.raises(ValidationError, match="cron"):
        spec_with(schedule={"cron": cron})


def test_a_schedule_runs_as_often_as_its_rounds_and_then_says_why_not():
    spec = spec_with(budget={"epsilon": 60.0, "delta": 1e-6, "rounds": 3})
    for month in (1, 2, 3):
        (request,) = tick(spec, datetime(2027, month, 1, 3, tzinfo=UTC)).run_requests
        assert request.tags["dpsynth/rounds"] == f"{4 - month} of 3 left"
        pay_for(spec, request.tags["dpsynth/release"])
    data = tick(spec)
    assert not data.run_requests
    assert "cohort 'letters'" in data.skip_message
    assert "Rounds: 0 of 3 left" in data.skip_message
    assert "budget.rounds is 3" in data.skip_message
