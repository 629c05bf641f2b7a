"""All budgets on one page: what is spent and left, for how long, and what is wrong."""

import json
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest

from dpsynth_assets.defs import sensors
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import AGREES
from dpsynth_assets.orchestration.assets.launch import refusal_of
from dpsynth_assets.orchestration.assets.privacy_budgets import (
    BUDGETS,
    BUDGETS_HOLD,
    PAGE,
    _with_run_and_month,
    budget_definitions,
    budgets_now,
    month_of_last_round,
    report_budgets,
)
from dpsynth_assets.orchestration.instance import dagster_instance
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import GENESIS, Ledger, sqlite_path
from dpsynth_assets.report.audit_page import budget_page, budget_table, until
from dpsynth_assets.report.budgets import NOTHING_CHARGED, CohortBudget, read_budgets
from dpsynth_assets.tags import COHORT, INTERNAL, PRIVACY
from dpsynth_assets_tests.assets.declared_cases import letters, pay_for
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.prepared import keep_demo_plans
from dpsynth_assets_tests.privacy.ledger_cases import release

BUDGET = {"epsilon": 6.0, "delta": 1e-6, "rounds": 3}
NOW = datetime(2026, 11, 20, tzinfo=UTC).timestamp()


@pytest.fixture
def ledger(own_home, tmp_path_factory, monkeypatch):
    """In a home that has planned the demo's datasets."""
    keep_demo_plans(tmp_path_factory, own_home)
    monkeypatch.setenv("DAGSTER_HOME", str(own_home / "dagster"))
    return Ledger(home().ledger_url)


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def row(budgets, cohort):
    return next(each for each in budgets.cohorts if each.cohort == cohort)


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_rounds_left_are_those_that_the_ledger_still_admits(ledger, accountant):
    budget = BUDGET | {"accountant": accountant}
    spec = letters(budget=budget)
    told = [row(read_budgets(ledger, [spec]), "letters")]
    for number in range(3):
        pay_for(spec, str(number))
        told.append(row(read_budgets(ledger, [spec]), "letters"))
    assert [each.rounds_left for each in told] == [3, 2, 1, 0]
    assert told[0].guarantee == NOTHING_CHARGED
    assert [each.guarantee for each in told[1:]] == ["dp"] * 3
    assert told[0].spent == 0.0 < told[-1].spent <= 6.0
    assert not any(each.overspent for each in told)
    with pytest.raises(Exception, match="letters"):
        pay_for(spec, "3")


METHODS = [{"method": "mean_clustered"}, {"method": "mean_uniform"}]


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_rounds_left_are_priced_by_what_the_schedule_pays(ledger, accountant):
    spec = letters(
        methods=METHODS,
        budget=BUDGET | {"accountant": accountant},
        schedule={"cron": "@daily", "methods": ["mean_uniform"]},
    )
    pay_for(spec, "1")
    plan = plan_dataset(spec)
    chosen = [planned for planned in plan.methods if planned.folder == "mean_uniform"]
    for tick in range(9):
        left = row(read_budgets(ledger, [spec]), "letters").rounds_left
        if refusal_of(spec, plan, chosen, ledger, f"tick {tick}") is not None:
            break
        assert left > 0
        pay_for(spec, f"tick {tick}", only="mean_uniform")
    assert (left, tick >= 2) == (0, True)


def test_schedules_of_cohorts_that_share_records_stand_with_their_account(ledger):
    """Of several that pay from it no common number is told."""
    own = {"shares_records_with": "letters", "schedule": {"cron": "@monthly"}}
    sharer = letters(name="second", budget=BUDGET, **own)
    (told,) = read_budgets(ledger, [letters(budget=BUDGET), sharer]).cohorts
    assert (told.cohort, told.schedule, told.rounds_left) == ("letters", "@monthly", 3)
    owner = letters(schedule={"cron": "@daily"}, budget=BUDGET)
    (told,) = read_budgets(ledger, [owner, sharer]).cohorts
    assert told.schedule == ["@daily", "@monthly"]
    assert (told.rounds, told.rounds_left, month_of_last_round(told, NOW)) == (None, None, "")


CLIPPED = {"expected_batch_size": 64, "clip_bound": 6.0}


@pytest.mark.parametrize(
    ("accountant", "edited"),
    [
        ("zcdp", {"budget": {"delta": 1e-5}}),
        ("tight", {"neighboring_relation": "zero-out", "public_facts": {"records": 1_000}}),
        ("zcdp", {"privacy_unit": {"column": "author", "max_records": 2}}),
        ("tight", {"methods": [{"method": "mean_uniform", "settings": CLIPPED}]}),
    ],
    ids=["delta", "relation", "unit", "fixed plan"],
)
def test_no_round_is_left_under_terms_that_the_ledger_would_not_charge(ledger, accountant, edited):
    budget = BUDGET | {"accountant": accountant}
    spec = letters(budget=budget)
    pay_for(spec, "1")
    assert row(read_budgets(ledger, [spec]), "letters").rounds_left == 2
    others = letters(**{**edited, "budget": budget | edited.get("budget", {})})
    assert row(read_budgets(ledger, [others]), "letters").rounds_left == 0
    plan = plan_dataset(others)
    assert refusal_of(others, plan, plan.methods, ledger, "2") is not None


def test_what_a_file_no_longer_declares_is_told_from_the_ledger(ledger):
    release(ledger)
    (told,) = read_budgets(ledger, []).cohorts
    assert (told.cohort, told.total, told.rounds, told.rounds_left) == ("tickets", 8.0, None, None)
    assert 0 < told.spent < 8.0
    assert told.spent + told.left <= 8.0
    assert "| [tickets](/assets/tickets) | █" in budget_table(read_budgets(ledger, []))


def test_a_budget_that_was_lowered_below_what_is_spent_is_a_problem(ledger):
    spec = letters(budget={"epsilon": 6.0, "delta": 1e-6})
    pay_for(spec, "1")
    assert read_budgets(ledger, [spec]).problems() == []
    lowered = letters(budget={"epsilon": 0.5, "delta": 1e-6})
    budgets = read_budgets(ledger, [lowered])
    (problem,) = budgets.problems()
    assert problem.startswith("letters: expected at most the total, got ε = ")
    assert row(budgets, "letters").left == 0.0
    assert 'class="notice"' in budget_page(budgets)


def cohort_budget(**changes):
    fields = {
        "cohort": "letters", "unit": "one record", "guarantee": "dp", "total": 6.0, "spent": 1.0,
        "guaranteed": 6.0, "left": 5.0, "delta": 1e-6, "rounds": 12, "rounds_left": 9,
        "schedule": "0 3 1 * *",
    }  # fmt: skip
    return CohortBudget(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "month"),
    [
        ({}, "2027-08"),
        ({"rounds_left": 1}, "2026-12"),
        ({"rounds_left": 0}, ""),
        ({"schedule": ""}, ""),
        ({"rounds_left": 10_000, "schedule": "@yearly"}, ""),  # The calendar ends before.
    ],
)
def test_the_month_of_the_last_round_follows_from_schedule_and_rounds(changes, month):
    assert month_of_last_round(cohort_budget(**changes), NOW) == month


def test_a_cohort_without_a_whole_round_or_without_a_corpus_is_said_to_be_so():
    spent = cohort_budget(rounds=1, rounds_left=0, spent=10.0, total=15.0, left=5.0)
    assert until(spent) == "less than one round is left"
    assert until(replace(spent, spent=14.99, left=0.01)) == "used up"
    assert not spent.paid_for_nothing
    assert replace(spent, published=False).paid_for_nothing


def audit(instance, cohort, *findings):
    """What the hourly audit leaves in the event log."""
    key = dg.AssetKey([cohort, "audit", "audit_trail"])
    told = {"findings": dg.MetadataValue.json(list(findings))}
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(key, AGREES, passed=not findings, metadata=told)
    )


def check_results(instance):
    key = dg.AssetCheckKey(BUDGETS, BUDGETS_HOLD)
    records = instance.event_log_storage.get_asset_check_execution_history(key, 5)
    return [record.status.value for record in records]


def test_the_asset_shows_every_cohort_with_its_last_run_and_its_disagreements(ledger, instance):
    release(ledger, run_id="4f1f0f8c-aaaa")
    release(ledger, cohort="zoo", dataset="zoo", asset="zoo/mean/corpus")
    audit(instance, "tickets")
    audit(instance, "zoo", "one", "two")
    instance.create_run_for_job(
        dg.GraphDefinition(name="zoos").to_job(), run_id="9" * 32, tags={COHORT: "zoo"}
    )
    (asset,) = budget_definitions().assets
    assert {spec.tags[PRIVACY] for spec in asset.specs} == {INTERNAL}
    result = dg.materialize([asset], resources={"ledger": PrivacyLedger()}, instance=instance)
    shown = result.asset_materializations_for_node("privacy_budgets")[0].metadata
    table = shown["dpsynth/budgets"].value
    assert "(/runs/4f1f0f8c-aaaa)" in table
    assert f"(/runs/{'9' * 32})" in table
    lines = {line.split("[")[1].split("]")[0]: line for line in table.splitlines() if "[" in line}
    assert "[0](/assets/tickets/audit/audit_trail)" in lines["tickets"]
    assert "[2](/assets/zoo/audit/audit_trail)" in lines["zoo"]
    assert "not audited yet" in lines["enquiries"]  # Declared, and never charged.
    assert shown["budget of tickets"].value.startswith("█")
    assert [
        each["cohort"] for each in budgets_now(ledger, instance).to_json()["cohorts"]
    ] == sorted(lines)


def test_the_last_run_is_the_newer_of_the_tagged_one_and_that_of_the_last_charge(ledger, instance):
    job = dg.GraphDefinition(name="runs").to_job()
    for number, cohort in enumerate(["tickets", "zoo"]):
        instance.create_run_for_job(job, run_id=f"{number}" * 32, tags={COHORT: cohort})
    release(ledger, run_id="for two cohorts")  # Tagged with both: a search for one misses it.
    told = {each.cohort: each.last_run for each in budgets_now(ledger, instance).cohorts}
    assert told["tickets"] in ("0" * 32, "for two cohorts")  # Within one minute either is shown.
    late = replace(cohort_budget(), cohort="zoo", last_run="a later charge", last_charge="2999")
    assert _with_run_and_month(late, ["zoo"], instance).last_run == "a later charge"
    early = replace(late, last_charge="2001")
    assert _with_run_and_month(early, ["zoo", "sharer"], instance).last_run == "1" * 32


def test_an_installation_without_a_ledger_shows_its_declared_budgets(ledger):
    file = sqlite_path(home().ledger_url)
    file.unlink()
    run = dpsynth("budgets", "--json", code=0)
    told = json.loads(run.output)
    assert not file.exists()
    assert "enquiries" in {each["cohort"] for each in told["cohorts"]}
    assert {each["spent"] for each in told["cohorts"]} == {0.0}
    assert (told["ledger_entries"], told["ledger_head"]) == (0, GENESIS)


def test_the_check_is_live_and_the_asset_is_made_anew_only_where_something_changed(
    ledger, instance
):
    release(ledger)
    for _ in range(2):
        report_budgets(ledger, instance)
    assert len(instance.fetch_materializations(BUDGETS, limit=9).records) == 1
    assert check_results(instance) == ["SUCCEEDED"] * 2
    audit(instance, "tickets", "a forged claim")
    report_budgets(ledger, instance)
    assert len(instance.fetch_materializations(BUDGETS, limit=9).records) == 2
    assert check_results(instance)[0] == "FAILED"
    assert not instance.get_runs()


def hourly_audit(instance):
    (sensor,) = [each for each in sensors.sensors().sensors if each.name == "audit_hourly"]
    return sensor(dg.build_sensor_context(instance=instance)).skip_message


def test_the_hourly_audit_shows_the_budgets_and_fails_their_check_where_they_cannot_be_read(
    ledger, instance, monkeypatch
):
    release(ledger)
    audited = dg.AssetKey(["tickets", "audit", "audit_trail"])
    instance.report_runless_asset_event(dg.AssetMaterialization(audited))
    hourly_audit(instance)  # The release has no materialisation: a disagreement.
    assert check_results(instance) == ["FAILED"]
    table = instance.get_latest_materialization_event(BUDGETS).asset_materialization.metadata
    assert table["dpsynth/problems"].value == 1

    def unreadable(*_):
        raise OSError("no ledger")

    monkeypatch.setattr(
        "dpsynth_assets.orchestration.assets.privacy_budgets.read_budgets", unreadable
    )
    assert "Cannot read the budgets (OSError: no ledger)" in hourly_audit(instance)
    assert check_results(instance) == ["FAILED"] * 2


def test_the_command_prints_a_line_a_cohort_writes_the_page_and_ends_with_1_where_one_is_wrong(
    ledger,
):
    release(ledger, cohort="zoo", dataset="zoo", asset="zoo/mean/corpus")
    run = dpsynth("budgets", "--json", code=0)
    told = json.loads(run.output)
    assert {"zoo", "tickets"} <= {each["cohort"] for each in told["cohorts"]}
    assert told["problems"] == []
    run = dpsynth("budgets", code=0)
    page = home().reports / PAGE
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "<meter" in page.read_text()
    assert re.search(r"zoo\s+│ █+░+", run.output)
    with dagster_instance() as opened:
        audit(opened, "zoo", "a forged claim")
    run = dpsynth("budgets", code=1)
    assert "zoo: the audit found 1 disagreements" in run.output
