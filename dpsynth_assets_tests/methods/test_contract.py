"""The contract of a method stays small, and no reader knows a method's class or fields."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.base import Method, Staged
from dpsynth_assets.methods.dataset_plan import corpus_request, stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.provenance import input_problems, refusal_for_inputs
from dpsynth_assets.methods.registry import REGISTRY, check_settings
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets_tests.declared import private

PRODUCT = Path(__file__).parents[2] / "dpsynth_assets"
ASKS_A_CLASS = re.compile(
    r"isinstance\((\w+\.)*method\b|\b(get|has)attr\((self\.|\w+\.)*(config|method),"
    r"(?!.*(max_position_embeddings|rope_parameters))"  # Those of weights.
)
OF_MODELS = "models"
"""Folder where `config` is the configuration of weights."""


def test_the_contract_has_at_most_fourteen_members_beside_what_a_method_may_leave_out():
    members = {name for kind in (Staged, Method) for name in {*vars(kind), *kind.__annotations__}}
    public = {name for name in members if not name.startswith("_")} | {"config", "terms"}
    optional = {name for name in public if getattr(Method, name, ...) in (None, False, frozenset())}
    assert len(public - optional) <= 14, sorted(public - optional)
    assert len(optional) <= 9, sorted(optional)


def test_nobody_asks_for_a_class_or_for_a_field_by_name():
    asking = [
        f"{file.relative_to(PRODUCT)}: {line.strip()}"
        for file in PRODUCT.rglob("*.py")
        if file.relative_to(PRODUCT).parts[0] != OF_MODELS
        for line in file.read_text().splitlines()
        if ASKS_A_CLASS.search(line)
    ]
    assert not asking


@pytest.mark.parametrize("name", REGISTRY)
def test_a_former_setting_is_no_field_and_is_refused_in_one_line_with_a_remedy(name):
    config = REGISTRY[name].config_type
    assert not config.constants.keys() & config.model_fields.keys()
    for setting, value in config.constants.items():
        (problem,) = check_settings(name, {setting: value})
        assert problem.field == setting
        assert problem.remedy.startswith("It was removed")
        assert problem.remedy.endswith("Drop it.")
        assert "\n" not in str(problem)


# Releases are asked for as they were: what was paid for is found again by what names it.

FILES = sorted((Path(__file__).parents[1] / "data" / "requests_of_format_1").glob("*.json"))

NAMES = {"language_model": "public_language_model"}
"""Names of inputs in charges of private prediction -> names of public artifacts."""


def asked_again(spec, plan, charge):
    """What is asked for today where a charge was made."""
    _, folder, name = charge["asset"].split("/")
    part = next(part for part in plan.parts if part.folder == folder and named(part, name))
    known, release = charge["parameters"], charge["release"]
    inputs = {NAMES.get(k, k): v for k, v in (known.get("inputs") or {}).items()}
    inputs |= {k: known[k] for k in ("public_clusters",) if k in known}
    if name not in [stage.name for stage in part.plan.stages]:
        return corpus_request(
            spec, part, rows=known["rows"], inputs=inputs, release=release, run_id=""
        )
    return stage_request(spec, part, part.plan.stage(name), release=release, inputs=inputs)


def named(part, name):
    return name == "candidate_corpus" or name in [stage.name for stage in part.plan.stages]


def nearly(one, other):
    """Whether two JSON values are equal, numbers up to the last bits that machines differ in."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(nearly(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(nearly, one, other))
    return one == other


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_release_is_asked_for_as_it_was(file, own_home):
    kept = json.loads(file.read_text())
    spec = PrivateDatasetSpec.model_validate(kept["dataset"])
    plan = plan_dataset(spec)
    assert kept["charges"]
    for charge in kept["charges"]:
        request = asked_again(spec, plan, charge)
        asked = json.loads(json.dumps(dict(request.parameters)))
        words = {k: v for k, v in asked.items() if k not in ("rests_on", "noise")}
        assert nearly(words, charge["parameters"]), charge["asset"]
        assert (request.mechanism, request.code_version) == (
            charge["mechanism"],
            charge["code_version"],
        )


# Laws of what methods build on: it is there, it is DP, or the method is refused and says why.

TRAINING = {"steps": 4, "expected_batch_size": 64, "rows": 100}
PREDICTION = {"expected_batch_size": 64, "max_batches": 8}


def method(name, folder=None, **settings):
    return {"method": name, "name": folder, "settings": settings}


def resampled(corpus, folder=None, rows=50):
    return method("resampled", folder, corpus=corpus, rows=rows)


def plan_of(*methods, **changes):
    declared = {
        "name": "letters",
        "budget": {"epsilon": 20.0, "delta": 1e-6, "accepts_ex_post": True},
        "public_facts": {"records": 5000},
        "cluster_histogram": {},
        "topic_histogram": {},
        "methods": methods,
    }
    return plan_dataset(private(**declared | changes))


def refusals(plan):
    return {p.folder: p.plan.refusal for p in plan.methods if p.plan.refusal is not None}


GENERATOR = method("dp_fine_tuning", **TRAINING)


@pytest.mark.parametrize("first", [True, False], ids=["built_on_first", "built_on_last"])
def test_a_corpus_that_is_there_is_linked_with_all_it_cost(first):
    methods = [GENERATOR, method("ctcl", **TRAINING), resampled("dp_fine_tuning")]
    plan = plan_of(*(methods if first else reversed(methods)))
    assert refusals(plan) == {}
    chosen, ctcl = plan.method("resampled"), plan.method("ctcl")
    topics = "shared/topic_histogram"
    assert set(plan.graph.reads(chosen.corpus)) == {topics, "dp_fine_tuning/candidate_corpus"}
    assert set(plan.graph.reads(ctcl.corpus)) == {topics, "ctcl/finetuned_generator"}
    assert topics not in plan.graph.behind("dp_fine_tuning/candidate_corpus")
    training = plan.method("dp_fine_tuning").plan.event
    assert list(plan.graph.events_behind(chosen.corpus)) == [plan.topics.plan.event, training]


def test_a_release_behind_two_paths_is_counted_once():
    ctcl = method("ctcl", **TRAINING)
    plan = plan_of(ctcl, resampled("ctcl"))
    behind = plan.graph.events_behind("resampled/candidate_corpus")
    assert list(behind) == [plan.topics.plan.event, plan.method("ctcl").plan.event]


def test_a_histogram_that_a_stage_reads_is_behind_its_corpus_needed_or_not():
    """The charge names it among its inputs, and the label counts what the charge names."""
    plan = plan_of(method("mean_uniform", **PREDICTION))
    planned = plan.method("mean_uniform")
    assert not planned.plan.stages[0].follows_clusters
    assert list(plan.graph.events_behind(planned.corpus)) == [plan.histogram.plan.event]


@pytest.mark.parametrize(
    "follower",
    [
        method("ctcl", **TRAINING),
        method("dp_fine_tuning", **TRAINING, keywords=True),
    ],
    ids=["ctcl", "keywords"],
)
def test_who_follows_topics_that_are_not_released_is_refused_and_charges_nothing(follower):
    plan = plan_of(follower, topic_histogram=None)
    (planned,) = plan.methods
    assert "Declare topic_histogram" in planned.plan.refusal
    assert planned.plan.event is None
    assert planned.plan.epsilon is None
    assert not planned.plan.charges
    assert "shared/topic_histogram" not in plan.graph.behind(planned.corpus)
    assert [line.asset for line in plan.releases] == ["letters/shared/cluster_histogram"]


NOT_THERE = {
    "nobody": ([resampled("nobody")], "'nobody'"),
    "a circle": ([resampled("b", "a"), resampled("a", "b")], "built on a itself"),
    "no corpus": (
        [method("downstream_fine_tuning", steps=4), resampled("downstream_fine_tuning")],
        "which writes no corpus",
    ),
    "ex-post": (
        [
            method("mean_uniform", **PREDICTION),
            method("median_clustered", **PREDICTION),
            resampled("median_clustered"),
        ],
        "median_clustered, whose guarantee is ex-post",
    ),
    "all rows": ([GENERATOR, resampled("dp_fine_tuning", rows=100)], "writes (100)"),
}


@pytest.mark.parametrize(("methods", "words"), NOT_THERE.values(), ids=NOT_THERE)
def test_a_method_whose_corpus_it_may_not_have_is_refused_and_the_others_are_not(methods, words):
    plan = plan_of(GENERATOR | {"name": "bystander"}, *methods)
    refused = refusals(plan)
    assert set(refused) == {m["name"] or m["method"] for m in methods if m["method"] == "resampled"}
    line = next(iter(refused.values()))
    assert words in line
    assert line.startswith("Expected ")
    assert "\n" not in line
    for planned in plan.methods:  # Ends, and finds everything it is linked with.
        plan.graph.events_behind(planned.corpus)
    assert plan.method("bystander").plan.event in plan.events


@pytest.mark.parametrize("kind", ["ex-post", "secret", "none"])
def test_what_is_chosen_from_a_corpus_over_two_steps_keeps_its_weaker_guarantee(kind):
    plan = plan_of(GENERATOR, resampled("dp_fine_tuning"), resampled("resampled", "again", 20))
    source, first, second = plan.methods
    weaker = replace(source, plan=replace(source.plan, guarantee=GuaranteeType(kind)))
    assert refusals(plan) == {}
    known = {planned.folder: planned for planned in (weaker, first, second)}
    for planned in (first, second):
        refusal = refusal_for_inputs(planned, known, has_topics=True)
        assert f"got dp_fine_tuning, whose guarantee is {kind}" in refusal


def test_who_builds_on_a_refused_method_is_refused_by_the_name_of_the_first_to_mend():
    chain = [resampled("nobody", "first"), resampled("first", "second", 20)]
    refused = refusals(plan_of(GENERATOR, *chain))
    assert "nobody" in refused["first"]
    assert "Fix first first" in refused["second"]


def test_a_problem_names_the_field_to_mend():
    plan = plan_of(resampled("nobody"), topic_histogram=None)
    known = {planned.folder: planned for planned in plan.methods}
    problems = input_problems(plan.method("resampled"), known, has_topics=False)
    assert [problem.field for problem in problems] == ["topic_histogram", "settings"]
