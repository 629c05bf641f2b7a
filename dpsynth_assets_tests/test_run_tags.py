"""Runs are found by cohort, release and ε, and runs of the command line stand in the timeline."""

import dagster as dg
import pytest

from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.launch import (
    DEFAULT_RELEASE,
    ReleaseConfig,
    composed_epsilon,
    release_name,
    run_tags,
    tag_run,
)
from dpsynth_assets.orchestration.instance import LOCATION, in_timeline
from dpsynth_assets.orchestration.resources.executors import tag_cohorts
from dpsynth_assets.orchestration.web import services
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.tags import COHORT, EPSILON, NAMED_RELEASE, PLANNED_EPSILON, RELEASE
from dpsynth_assets_tests.assets.declared_cases import letters


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def step_of(name, cohort, epsilon, after, asked):
    @dg.asset(name=name, deps=after)
    def step(context: dg.AssetExecutionContext, config: ReleaseConfig) -> None:
        asked[name] = release_name(context, config)
        tag_run(context, cohort, asked[name], epsilon)

    return step


def run(instance, steps, tags=None, configured=()):
    """Runs steps of (cohort, ε), one after the other; returns the run's tags and the releases."""
    asked, assets = {}, []
    for number, (cohort, epsilon) in enumerate(steps):
        assets.append(step_of(f"step_{number}", cohort, epsilon, assets[-1:], asked))
    config = {"ops": {name: {"config": {"release": release}} for name, release in configured}}
    dg.materialize(assets, instance=instance, tags=tags, run_config=config)
    (made,) = instance.get_runs(limit=1)
    return made.tags, list(asked.values())


@pytest.mark.parametrize("written", ["abc", "nan", "-3"])
def test_a_tag_that_is_no_epsilon_is_replaced_and_stops_no_step(instance, written):
    tags, _ = run(instance, [("letters", "1.50")], tags={EPSILON: written})
    assert tags[EPSILON] == "1.50"


def test_a_run_that_nobody_tagged_is_tagged_by_its_steps(instance):
    tags, asked = run(instance, [("letters", "1.50"), ("letters", "9.97")])
    assert (tags[COHORT], tags[RELEASE], tags[EPSILON]) == ("letters", DEFAULT_RELEASE, "9.97")
    assert asked == [DEFAULT_RELEASE] * 2
    assert len(instance.get_runs(filters=dg.RunsFilter(tags={COHORT: "letters"}))) == 1


def test_a_run_is_tagged_before_its_first_step_with_the_cohorts_that_it_makes(instance):
    keys = (["tickets", "mean", "corpus"], ["public", "demo", "corpus"], ["savings", "a", "corpus"])
    assets = [dg.AssetSpec(key) for key in keys]

    @dg.multi_asset(specs=assets[:2])
    def made(): ...

    @dg.asset_check(asset=keys[2])
    def checked() -> dg.AssetCheckResult: ...

    defs = dg.Definitions(assets=[made, assets[2]], asset_checks=[checked])
    job = defs.resolve_implicit_global_asset_job_def()
    for given in ({}, {RELEASE: "2026-12", EPSILON: "9.97"}):
        begun = instance.create_run_for_job(job, tags=given)
        tag_cohorts(instance, begun)
        tags = instance.get_run_by_id(begun.run_id).tags
        assert tags[COHORT] == "savings, tickets"
        assert (tags[RELEASE], tags[EPSILON]) == (given.get(RELEASE, "1"), "0")


def test_a_run_is_tagged_with_what_it_was_charged_whatever_was_planned(instance):
    spec = letters()
    plan = plan_dataset(spec)
    launched = run_tags("letters", "2026-12", plan, {each.asset for each in plan.releases})
    tags, _ = run(instance, [], tags=launched)  # It ends before anything is charged.
    assert tags[EPSILON] == "0" < tags[PLANNED_EPSILON]
    tags, asked = run(instance, [("letters", "1.50"), ("bills", "2.00")], tags=launched)
    assert (tags[COHORT], tags[RELEASE], tags[EPSILON]) == ("bills, letters", "2026-12", "2.00")
    assert tags[PLANNED_EPSILON] == launched[PLANNED_EPSILON]
    assert asked == ["2026-12"] * 2


def test_the_name_of_one_step_never_becomes_the_release_of_the_others(instance):
    tags, asked = run(
        instance, [("letters", "1.50"), ("letters", "1.50")], configured=[("step_0", "second")]
    )
    assert asked == ["second", DEFAULT_RELEASE]
    assert tags[NAMED_RELEASE] == "second"
    assert tags[RELEASE] == DEFAULT_RELEASE


def test_the_tag_tells_epsilon_of_all_paid_releases_together_and_never_too_little():
    spec = letters()
    plan = plan_dataset(spec)
    tags = run_tags(spec.name, "", plan, {each.asset for each in plan.releases})
    exact = epsilon_of_fixed(list(plan.events), spec.budget.delta, plan.budget.accountant)
    assert tags[COHORT] == "letters"
    assert exact <= float(tags[PLANNED_EPSILON]) <= exact + 0.01
    assert run_tags(spec.name, "7", plan, ())[PLANNED_EPSILON] == "0"
    assert composed_epsilon([None, POST_PROCESSING], plan.budget) == "0"


def test_a_run_of_the_command_line_names_the_code_location_of_the_web_ui(instance):
    @dg.asset
    def step() -> None:
        """Nothing."""

    job = dg.Definitions(assets=[step]).resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=instance)
    assert instance.get_runs()[0].remote_job_origin is None
    job.execute_in_process(instance=in_timeline(instance, job.name), asset_selection=[step.key])
    (shown,) = instance.get_runs(
        filters=dg.RunsFilter(tags={".dagster/repository": f"__repository__@{LOCATION}"})
    )
    assert shown.is_success
    assert shown.remote_job_origin.location_name == LOCATION
    assert services._DEFINITIONS["python_module"]["location_name"] == LOCATION
