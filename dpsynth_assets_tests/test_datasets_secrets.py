"""What a dataset file may declare about secrets, and what it is refused for."""

import pytest
from pydantic import ValidationError

from dpsynth_assets.cli.datasets import method_problems
from dpsynth_assets.datasets.files import resolve_paths
from dpsynth_assets.datasets.secrets import SecretKindSpec, SecretsSpec
from dpsynth_assets.methods.dataset_plan import budget_terms
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.promised_secrets import kept_promises, promise_problems
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.secret_protection import posterior_of_events
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import private, written

EMAIL = {"name": "email", "detector": "presidio", "entity": "EMAIL_ADDRESS", "max_records": 4}
NAME = {
    "name": "name", "detector": "regex", "pattern": "[A-Z]+", "max_records": 7, "prior": 0.01,
    "posterior": 0.2,
}  # fmt: skip


def spec(secrets=None, **changes):
    fields = {
        "name": "notes",
        "budget": {"epsilon": 4, "delta": 1e-6, "accountant": "tight"},
        "methods": [{"method": "secpe", "settings": {"population": 8}}],
        "secrets": secrets or {"kinds": [EMAIL, NAME]},
    }
    return private(**fields | changes)


pytestmark = pytest.mark.usefixtures("own_home")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entity": None}, "entity"),
        ({"pattern": "x"}, "no pattern for detector: presidio"),
        ({"detector": "ner"}, "Write model"),
        ({"posterior": 1e-4}, "more than the prior"),
        ({"max_records": 0}, "greater than or equal to 1"),
        ({"max_records": None}, "max_records"),
        ({"detector": "regex", "entity": None, "pattern": "("}, "a regular expression"),
    ],
)
def test_a_kind_that_cannot_work_is_refused(changes, message):
    fields = {name: value for name, value in {**EMAIL, **changes}.items() if value is not None}
    with pytest.raises(ValidationError, match=message):
        SecretKindSpec.model_validate(fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"epsilon": 4, "delta": 1e-6}}, "tight where a bound on secrets"),
        ({"neighboring_relation": "replace-one"}, "substitution where records are replaced"),
        (
            {"secrets": {"kinds": [EMAIL], "public_incidence": "held.parquet"}},
            "an id column where public_incidence",
        ),
        ({"secrets": {"kinds": [EMAIL, EMAIL]}}, "'email' twice"),
    ],
)
def test_a_cohort_that_cannot_keep_the_promise_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        spec(**changes)


def test_the_ledger_is_told_every_bound_and_the_largest_cap():
    terms = budget_terms(spec()).secret
    assert (terms.bounds, terms.occurrences) == (((1e-4, 1e-3), (0.01, 0.2)), 7)
    assert budget_terms(private()).secret is None


@pytest.mark.parametrize(
    ("relation", "adjacency", "steps"),
    [
        ("add-remove", "removal", 1),
        ("add-remove", "substitution", 2),
        ("replace-one", "substitution", 1),
    ],
)
def test_a_replaced_record_is_two_steps_of_a_cohort_whose_records_come_or_go(
    relation, adjacency, steps
):
    declared = spec({"kinds": [EMAIL], "adjacency": adjacency}, neighboring_relation=relation)
    assert budget_terms(declared).secret.occurrences == steps * 4
    removed = adjacency == "removal"
    expected = NeighboringRelation.ADD_REMOVE if removed else NeighboringRelation.REPLACE_ONE
    assert declared.secrets.relation is expected


def test_a_plan_of_secrets_has_no_epsilon():
    plan = plan_dataset(spec())
    (planned,) = plan.methods
    assert planned.plan.refusal is None
    assert planned.plan.guarantee is GuaranteeType.SECRET
    assert (plan.events, plan.total_epsilon, planned.plan.epsilon) == ((), 0.0, None)
    assert [release.asset for release in plan.releases] == ["notes/secpe/secret_clusters"]


def test_dp_releases_beside_it_keep_the_whole_budget():
    methods = [{"method": "secpe"}, {"method": "aug_pe"}]
    beside = plan_dataset(spec(methods=methods))
    alone = plan_dataset(spec(methods=methods[1:]))
    assert beside.total_epsilon == pytest.approx(alone.total_epsilon)


COUNTED = {"cluster_histogram": {"budget_share": 0.02}, "methods": [{"method": "mean_clustered"}]}
HELD_BY_FIFTY = {**NAME, "max_records": 50, "prior": 1e-4, "posterior": 1e-3}


def test_a_promise_that_dp_releases_break_is_a_problem_of_the_dataset_file():
    broken = spec({"kinds": [EMAIL, HELD_BY_FIFTY]}, **COUNTED)
    plan = plan_dataset(broken)
    assert plan.methods[0].plan.refusal is None
    problems = [p for p in method_problems(broken) if p.field.startswith("secrets")]
    assert [problem.field for problem in problems] == ["secrets.kinds.0.posterior"]
    assert problems[0].severity == "error"
    line = str(problems[0])
    assert "prior 0.0001 at a posterior of at most 0.001, got 1" in line
    assert "Lower budget.epsilon" in line
    assert "\n" not in line


@pytest.mark.parametrize(("rounds", "held_by"), [(1, 2), (3, 4)])
def test_a_plan_that_keeps_its_promise_reaches_what_all_its_rounds_tell(rounds, held_by):
    budget = {"epsilon": 0.5, "delta": 1e-6, "accountant": "tight", "rounds": rounds}
    methods = [{"method": "aug_pe", "settings": {"population": 8}}]
    kept = spec(
        {"kinds": [HELD_BY_FIFTY | {"max_records": held_by}]}, methods=methods, budget=budget
    )
    plan = plan_dataset(kept)
    (promise,) = kept_promises(kept, plan)
    told = posterior_of_events([*plan.events] * rounds, promise.prior, occurrences=held_by)
    assert promise.reached == pytest.approx(told)
    assert promise.prior < promise.reached < promise.promised
    assert method_problems(kept) == []


def test_an_ex_post_method_breaks_every_promise():
    budget = {"epsilon": 4, "delta": 1e-6, "accountant": "tight", "accepts_ex_post": True}
    methods = [{"method": "mean_clustered"}, {"method": "median_clustered"}]
    broken = spec(**{**COUNTED, "methods": methods}, budget=budget)
    lines = [str(problem) for problem in promise_problems(broken, plan_dataset(broken))]
    assert len(lines) == 2
    assert all("median_clustered, whose ex-post bound" in line for line in lines)


@pytest.mark.usefixtures("known_speed")
def test_the_plan_command_prints_the_promise_it_breaks_and_fails(own_datasets):
    broken = spec({"kinds": [HELD_BY_FIFTY]}, **COUNTED)
    fields = broken.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    written(own_datasets / "notes.yaml", fields)
    told = dpsynth("plan", "notes", env={"COLUMNS": "240"}, code=2)
    assert "posterior 1 after all rounds (promised: at most 0.001)" in told.output
    assert "notes: secrets.kinds.0.posterior: expected" in told.output


def test_paths_are_found_from_the_dataset_file(tmp_path):
    (tmp_path / "words.txt").write_text("zorvex")
    words = {"name": "w", "detector": "dictionary", "path": "words.txt", "max_records": 1}
    declared = {"kinds": [words, EMAIL], "public_incidence": "held.parquet"}
    secrets = SecretsSpec.model_validate(declared)
    located = resolve_paths(secrets, tmp_path / "a.yaml")
    assert located.kinds[0].path == str(tmp_path / "words.txt")
    assert located.kinds[1] == secrets.kinds[1]
    assert located.public_incidence.endswith("/held.parquet")
