"""Laws of attacks and labels: results of other settings say nothing, refuted claims stop a corpus.

About 12 s of CPU.
"""

import json

import dagster as dg
import polars as pl
import pytest
from dagster._core.execution.api import create_execution_plan

from dpsynth_assets.attacks.audits import latest_results
from dpsynth_assets.attacks.catalogue import MEDIANS, RECONSTRUCTIONS
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets import corpora
from dpsynth_assets.orchestration.assets.corpora import publish_corpus
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.report import attack_record
from dpsynth_assets.report.attack_record import (
    attacks_on,
    attacks_on_cohort,
    attacks_on_release,
    refusal,
    save_attacks,
    settings_of_charge,
    settings_of_method,
)
from dpsynth_assets.report.cards import corpus_problems, released_folder
from dpsynth_assets_tests.assets.declared_cases import definitions_of, letters
from dpsynth_assets_tests.declared import audit_result
from dpsynth_assets_tests.privacy.ledger_cases import make_request, sqlite_url

pytestmark = pytest.mark.usefixtures("own_home")

MODEL = "f00d"
SETTINGS = {"expected_batch_size": 64}
PROMPT = {"private": "Texts: {examples} One more:", "text_start": '{"a": 1.0}'}


def declared(method="mean_uniform", **changes):
    fields = {
        "columns": {"labels": ["label"]},
        "public_facts": {"labels": {"label": ["a", "b"]}},
        "budget": {"epsilon": 60.0, "delta": 1e-6, "accepts_ex_post": True, "rounds": 4},
        "methods": [{"method": method, "settings": SETTINGS}],
        "public_data": "elsewhere",  # Settings do not depend on the demo's model.
    }
    spec = letters(**(fields | changes))
    return spec, plan_dataset(spec)


def charge(ledger, spec, plan, *, model=MODEL, release="first"):
    """Charges the only method as its asset does; returns the charge's entry."""
    (planned,) = plan.methods
    (stage,) = planned.plan.stages
    inputs = {"public_language_model": model, "public_clusters": "c"}
    request = stage_request(spec, planned, stage, release=release, inputs=inputs)
    reservation = ledger.reserve(request, plan.budget)
    ledger.commit(reservation, artifact_digest="d", artifact_uri="u")
    return next(e for e in ledger.entries() if e.reservation == reservation.id)


@pytest.fixture
def resource(ledger, tmp_path, monkeypatch):
    """The ledger, as assets get it."""
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", sqlite_url(tmp_path))
    return PrivacyLedger()


@pytest.fixture
def paid(ledger):
    """A cohort, its plan, and the charge of its method."""
    spec, plan = declared()
    return spec, plan, charge(ledger, spec, plan)


def record(plan, *, model=MODEL, passed=True):
    """Records reconstruction tests of the only method under its settings."""
    settings = settings_of_method(plan.methods[0], plan.budget, model)
    first, *others = (f"letters/mean_uniform/{each}" for each in RECONSTRUCTIONS)
    results = [audit_result(each, settings=settings) for each in others]
    save_attacks([audit_result(first, settings=settings, passed=passed), *results])


def candidate(entry):
    return pl.DataFrame({"text": ["a letter"], "label": ["a"], "reservation": [entry.reservation]})


def published(spec, plan, ledger, entry):
    publish_corpus(spec, plan.methods[0], candidate(entry), ledger)
    folder = released_folder(spec.name, plan.methods[0].folder)
    return folder, json.loads((folder / "privacy_label.json").read_text())


# Settings


DECLARED = {
    "mean_uniform": {},
    "mean_clustered": {},
    "median_clustered": {
        "methods": [{"method": "median_clustered", "settings": SETTINGS | {"matched_epsilon": 3.0}}]
    },
    "prompted": {"methods": [{"method": "mean_uniform", "settings": SETTINGS}], "prompt": PROMPT},
}


@pytest.mark.parametrize("case", DECLARED)
def test_a_method_and_its_charge_have_the_same_settings(ledger, case):
    spec, plan = declared(case, **DECLARED[case])
    entry = charge(ledger, spec, plan)
    assert settings_of_charge(entry) == settings_of_method(plan.methods[0], plan.budget, MODEL)


CHANGES = {
    "temperature": {"methods": [{"method": "mean_uniform", "settings": {"temperature": 1.4}}]},
    "prompt": {"prompt": PROMPT},
    "other prompt": {"prompt": PROMPT | {"text_start": '{"b": 1.0}'}},
    "method": {"methods": [{"method": "mean_clustered", "settings": SETTINGS}]},
    "budget": {"budget": {"epsilon": 61.0, "delta": 1e-6, "rounds": 4}},
    "relation": {"neighboring_relation": "replace-one"},
    "unit": {"privacy_unit": {"column": "person", "max_records": 2}},
}


def test_other_settings_prompts_terms_models_or_code_are_other_settings(paid, monkeypatch):
    _spec, plan, entry = paid
    found = {settings_of_charge(entry)}
    for change in CHANGES.values():
        other = declared(**change)[1]
        found.add(settings_of_method(other.methods[0], other.budget, MODEL))
    found.add(settings_of_method(plan.methods[0], plan.budget, "other model"))
    monkeypatch.setattr(type(plan.methods[0].method), "code_version", "later")
    found.add(settings_of_method(plan.methods[0], plan.budget, MODEL))
    monkeypatch.setattr(attack_record, "CODE_VERSION", "later")
    found.add(settings_of_method(plan.methods[0], plan.budget, MODEL))
    assert len(found) == len(CHANGES) + 4


def test_another_name_of_a_release_has_the_same_settings(ledger):
    spec, plan = declared()
    one, other = (charge(ledger, spec, plan, release=name) for name in ("first", "second"))
    assert one.reservation != other.reservation
    assert settings_of_charge(one) == settings_of_charge(other)


# What is on record


def test_a_label_prints_results_of_its_own_settings_alone_and_says_what_was_not_run(paid, ledger):
    spec, plan, entry = paid
    record(plan, model="another model")
    attacks = attacks_on(entry)
    assert [each["name"] for each in attacks] == [
        f"letters/mean_uniform/{name}" for name in RECONSTRUCTIONS
    ]
    assert [each["passed"] for each in attacks] == [None, None]
    folder, label = published(spec, plan, ledger, entry)
    assert label["audits"][-2:] == attacks
    assert (folder / "README.md").read_text().count("NOT RUN with the settings") == 2
    assert corpus_problems(folder, ledger.entries()) == []
    record(plan)
    assert [each["passed"] for each in attacks_on(entry)] == [True, True]
    folder, label = published(spec, plan, ledger, entry)
    assert all(each["claim"] and each["measure"] for each in label["audits"][-2:])
    assert "NOT RUN" not in (folder / "README.md").read_text()
    assert corpus_problems(folder, ledger.entries()) == []


def test_a_median_is_also_audited(ledger):
    spec, plan = declared("median_clustered", **DECLARED["median_clustered"])
    names = [each["name"].rpartition("/")[2] for each in attacks_on(charge(ledger, spec, plan))]
    assert names == [*RECONSTRUCTIONS, *MEDIANS]


def test_results_of_one_settings_leave_those_of_others_on_record(paid):
    _spec, plan, entry = paid
    record(plan)
    record(plan, model="another model", passed=False)
    assert [each["passed"] for each in attacks_on(entry)] == [True, True]
    assert len(latest_results(attack_record.attacks_file())) == 4


def test_a_refuted_claim_stays_refuted_whatever_later_runs_do_not_find(paid):
    _spec, plan, entry = paid
    record(plan, passed=False)
    record(plan)
    assert [each["passed"] for each in attacks_on(entry)] == [False, True]


def test_a_statement_lists_attacks_on_the_last_release_of_each_method(ledger):
    spec, plan = declared()
    record(plan)
    charge(ledger, spec, plan, model="another model")
    assert [each["passed"] for each in attacks_on_cohort("letters", ledger.entries())] == [None] * 2
    charge(ledger, spec, plan)
    assert [each["passed"] for each in attacks_on_cohort("letters", ledger.entries())] == [True] * 2
    assert attacks_on_cohort("others", ledger.entries()) == []


# Publication


def test_a_refuted_claim_stops_publication_with_one_line_and_leaves_what_was_there(paid, ledger):
    spec, plan, entry = paid
    folder, label = published(spec, plan, ledger, entry)
    record(plan, passed=False)
    with pytest.raises(dg.Failure) as stopped:
        published(spec, plan, ledger, entry)
    line = stopped.value.description
    assert "\n" not in line
    assert f"letters/mean_uniform/{RECONSTRUCTIONS[0]}" in line
    assert "2 where 1 is claimed" in line
    assert "Nothing was published" in line
    assert not stopped.value.allow_retries
    assert json.loads((folder / "privacy_label.json").read_text()) == label


def test_what_builds_on_a_refuted_release_is_not_published_either(ledger):
    spec, plan = declared()
    base = charge(ledger, spec, plan)
    request = make_request(
        cohort="letters",
        dataset="letters",
        asset="letters/resampled/candidate_corpus",
        mechanism="resampled",
        parameters={"inputs": {"mean_uniform": base.reservation}},
    )
    chosen = ledger.reserve(request, plan.budget)
    attacks = attacks_on_release(ledger.entries(), chosen.id)
    assert [each["name"] for each in attacks] == [each["name"] for each in attacks_on(base)]
    assert refusal(attacks) is None
    record(plan, passed=False)
    assert RECONSTRUCTIONS[0] in refusal(attacks_on_release(ledger.entries(), chosen.id))


def test_the_check_of_the_candidate_says_what_publishing_says(paid, resource):
    spec, plan, entry = paid
    withstood, _ = corpora.attack_checks(spec, plan.methods[0])
    assert withstood(candidate(entry), ledger=resource).passed
    assert withstood(candidate(entry).clear(), ledger=resource).passed
    record(plan, passed=False)
    refused = withstood(candidate(entry), ledger=resource)
    assert not refused.passed
    assert refused.metadata["observed"].value == refusal(attacks_on(entry))


def test_a_label_that_is_older_than_an_attack_is_named_until_it_is_published_again(
    paid, ledger, resource
):
    spec, plan, entry = paid
    published(spec, plan, ledger, entry)
    _, up_to_date = corpora.attack_checks(spec, plan.methods[0])
    assert up_to_date(ledger=resource).passed
    record(plan)
    stale = up_to_date(ledger=resource)
    assert not stale.passed
    assert stale.severity is dg.AssetCheckSeverity.WARN
    assert RECONSTRUCTIONS[0] in stale.metadata["observed"].value
    published(spec, plan, ledger, entry)
    assert up_to_date(ledger=resource).passed


# Order


@pytest.fixture(scope="module")
def definitions():
    names = ("mean_uniform", "median_clustered", "dp_fine_tuning")
    budget = {"epsilon": 60.0, "delta": 1e-6, "accepts_ex_post": True}
    methods = [{"method": name} for name in names]
    return definitions_of(letters(methods=methods, budget=budget, public_facts={"records": 4000}))


def steps(definitions, selection):
    """Steps of a run of a selection, each with every step that comes before it."""
    graph = definitions.resolve_asset_graph()
    keys = dg.AssetSelection.from_string(selection).resolve(graph)
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(asset_selection=set(keys))
    plan = create_execution_plan(job)
    parents = {step.key: step.get_execution_dependency_keys() for step in plan.steps}
    before = {}
    for level in plan.get_steps_to_execute_by_level():
        for step in level:
            own = parents[step.key]
            before[step.key] = own.union(*(before[parent] for parent in own))
    return before


RECONSTRUCTION, MEDIAN = "letters__audit__reconstruction_test", "letters__audit__median_audit"


def test_where_a_run_makes_both_a_corpus_comes_after_its_methods_attacks(definitions):
    before = steps(definitions, 'key:"letters/*"')
    assert RECONSTRUCTION in before["letters__mean_uniform__corpus"]
    assert MEDIAN not in before["letters__mean_uniform__corpus"]
    assert {RECONSTRUCTION, MEDIAN} <= before["letters__median_clustered__corpus"]
    assert not {RECONSTRUCTION, MEDIAN} & before["letters__dp_fine_tuning__corpus"]


@pytest.mark.parametrize("method", ["mean_uniform", "median_clustered", "dp_fine_tuning"])
def test_a_corpus_and_what_it_is_built_on_runs_no_attack(definitions, method):
    found = steps(definitions, f'+key:"letters/{method}/corpus"')
    assert f"letters__{method}__corpus" in found
    assert not {RECONSTRUCTION, MEDIAN} & set(found)
