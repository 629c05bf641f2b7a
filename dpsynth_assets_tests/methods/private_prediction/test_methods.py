"""Plans price what generation draws; corpora hold what may be released."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from dpsynth_assets.attacks.reconstruction import CopyingModel
from dpsynth_assets.datasets import LanguageModelSpec
from dpsynth_assets.methods.base import priced, room_of
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.on_generator import OnGenerator
from dpsynth_assets.methods.private_prediction.corpus import Drawing, RealisedCosts
from dpsynth_assets.methods.private_prediction.loop import Document
from dpsynth_assets.methods.private_prediction.method import BatchPrediction
from dpsynth_assets.methods.private_prediction.planted_keys import batches_task
from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.methods.registry import REGISTRY, bound_method, check_settings, get_method
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.methods.work import PublicSizes
from dpsynth_assets.models.decoding.protocol import COUNTS
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import flatten
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
from dpsynth_assets_tests.methods.cohorts import MemoryPasses
from dpsynth_assets_tests.methods.private_prediction import conftest
from dpsynth_assets_tests.methods.private_prediction.conftest import NAMES, SMALL, make_planned

config_of = partial(conftest.config_of, batches_per_forward=4)


def bound(name, terms):
    return get_method(name)(config_of(name), terms)


def run(name, cases, model, *, private=None, terms=None, config=None, epsilon=10.0, **public):
    terms = terms or cases.terms(accepts_ex_post=True)
    method = get_method(name)(config or config_of(name), terms)
    plan = method.plan(epsilon)
    assert plan.refusal is None
    inputs = cases.clustered(model, **public)
    return plan, cases.release(method, plan, private or cases.private(64), inputs)


BATCHED = sorted(
    name
    for name, method in REGISTRY.items()
    if issubclass(method, BatchPrediction)
    and not issubclass(
        method, OnGenerator
    )  # test_built_on_corpora.py runs these on weights in a folder.
)


@pytest.fixture(params=BATCHED)
def name(request):
    return request.param


def test_a_plan_needs_declared_terms_alone(name, cases):
    config, terms = REGISTRY[name].config_type(), cases.terms(accepts_ex_post=True)
    plan = get_method(name)(config, terms).plan(10.0)
    assert plan.refusal is None
    assert plan.tokens_per_batch > 90
    assert json.loads(json.dumps(plan.parameters))["tokens_per_batch"] == plan.tokens_per_batch


@pytest.mark.parametrize("name", ["mean_clustered", "mean_svt", "invisible_ink"])
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_a_plan_spends_its_epsilon_and_one_more_private_token_would_not_fit(
    cases, name, accountant
):
    terms, alone = cases.terms(accountant=accountant), {"batches_per_forward": 1}
    method = get_method(name)(config_of(name, min_tokens_for_new_document=1, **alone), terms)
    plan = method.plan(30.0)
    more = [replace(event, count=event.count + 1) for event in flatten(plan.event)]
    assert plan.epsilon == epsilon_of([plan.event], terms.delta, accountant) <= 30.0
    assert epsilon_of(more, terms.delta, "zcdp") > 30.0  # Shares are shares of ρ.
    assert {event.count for event in flatten(plan.event)} == {plan.tokens_per_batch}


def test_replace_one_and_larger_units_plan_a_quarter_of_the_tokens(cases):
    def tokens(terms):
        config = config_of("mean_clustered", logit_slack=0.0, expected_batch_size=64)
        return get_method("mean_clustered")(config, terms).plan(5.0).tokens_per_batch

    base = tokens(cases.terms())
    replaced = tokens(cases.terms(relation=NeighboringRelation.REPLACE_ONE))
    pairs = tokens(cases.terms(unit=PrivacyUnit(column="customer", max_records=2)))
    assert replaced == pytest.approx(base / 4, abs=1)
    assert pairs == pytest.approx(base / 4, abs=1)


def test_too_small_a_budget_is_refused_in_one_line(name, cases):
    plan = priced(bound(name, cases.terms(accepts_ex_post=True)), 0.01)
    assert "min_tokens_for_new_document" in plan.refusal
    assert "\n" not in plan.refusal
    assert plan.event is None


@pytest.mark.parametrize(
    ("name", "terms", "epsilon", "lacks"),
    [
        ("mean_clustered", {"has_cluster_histogram": False}, 10.0, "cluster_histogram"),
        (
            "mean_uniform",
            {"public_records": None, "has_cluster_histogram": False},
            10.0,
            "cluster_histogram",
        ),
        ("median_clustered", {"has_cluster_histogram": False}, 10.0, "cluster_histogram"),
        ("median_clustered", {}, 0.0, "matched_epsilon"),
        ("median_clustered", {"accepts_ex_post": False}, 10.0, "ex-post"),
    ],
)
def test_a_method_that_lacks_what_it_needs_is_refused(name, terms, epsilon, lacks, cases):
    refused = priced(bound(name, cases.terms(**{"accepts_ex_post": True} | terms)), epsilon)
    assert lacks in refused.refusal


@pytest.mark.parametrize(
    ("changes", "records", "uses"),
    [({}, None, True), ({}, 100, False), ({"batches_per_label": 2}, None, False)],
)
def test_uniform_batches_carry_the_histogram_only_if_they_build_on_it(
    changes, records, uses, cases
):
    terms = cases.terms(public_records=records)
    config = config_of("mean_uniform", **changes)
    (stage,) = get_method("mean_uniform")(config, terms).stages()
    assert stage.follows_clusters is uses


def test_rows_hold_the_allowed_columns_and_no_blank_text(name, cases, language_model):
    _, release = run(name, cases, language_model)
    rows = release.value.rows
    assert rows.columns == ["text", "label", "batch", "cluster", "n_tokens"]
    assert len(rows) > 0
    assert (rows["text"].str.strip_chars() == rows["text"]).all()
    assert (rows["text"] != "").all()
    assert set(rows["label"]) <= {"x", "y"}
    assert rows["n_tokens"].max() <= SMALL["max_document_tokens"]


@pytest.mark.parametrize("name", sorted(set(BATCHED) - {"median_clustered"}))
def test_what_runs_and_what_it_costs_is_the_mechanism_of_the_stage(name, cases, endless_model):
    method = get_method(name)(config_of(name), cases.terms())
    (stage,) = method.plan(10.0).stages
    fewer = replace(stage, mechanism=replace(stage.mechanism, tokens=5))
    inputs = cases.clustered(endless_model)
    release = fewer.release(cases.private(64), inputs, None, cases.silent)
    assert release.cost.event == fewer.mechanism.event() != stage.mechanism.event()
    assert release.cost.guarantee is GuaranteeType.DP
    assert not release.value.internal
    assert release.value.facts["private_tokens"] <= 5 * release.value.facts["batches"]


def test_facts_of_an_endless_model_are_the_same_for_any_private_data(cases, endless_model):
    facts = [
        run("mean_clustered", cases, endless_model, private=cases.private(n, seed=n))[1].value.facts
        for n in (64, 10, 0)
    ]
    assert len({fact["private_tokens"] for fact in facts}) == 1
    assert len({fact["batches"] for fact in facts}) == 1


def test_median_bound_covers_every_batch_and_stays_internal(cases, language_model):
    config = config_of("median_clustered", matched_epsilon=4.0)
    _, release = run(
        "median_clustered", cases, language_model, private=cases.private(9), config=config
    )
    costs = release.value.internal["ex_post_epsilon_by_batch"]
    assert release.cost.ex_post_epsilon == pytest.approx(costs.max())
    assert release.cost.guarantee is GuaranteeType.EX_POST
    assert release.cost.event is None
    assert len(costs) == release.value.facts["batches"] == 6
    assert (costs > 0).all()  # an empty batch costs too: a neighbour may put a record there
    assert "epsilon" not in " ".join(release.value.facts)
    assert "ex_post" not in repr(release.value)


def test_costs_of_tokens_by_place_are_the_costs_of_the_batches_and_stay_internal(
    cases, language_model
):
    config = config_of("median_clustered", matched_epsilon=4.0)
    _, release = run("median_clustered", cases, language_model, config=config)
    corpus = release.value
    places = corpus.internal["token_cost_by_position"]
    total = corpus.internal["ex_post_epsilon_by_batch"].sum()
    # A batch that draws no more bears what rounding of its records moves in the others' draws.
    own, draws = (places["count"] * places["mean"]).sum(), corpus.facts["private_tokens"]
    moved = 4 * config.logit_slack / config.temperature * draws * corpus.facts["batches"]
    assert own - 1e-9 <= total <= own + moved
    assert places["count"].sum() == draws
    assert len(places["mean"]) <= SMALL["max_document_tokens"] + 1
    assert (places["p10"] <= places["p50"]).all()
    assert (places["p50"] <= places["p90"]).all()
    _, mean = run("mean_clustered", cases, language_model, epsilon=4.0)
    assert set(corpus.facts) == set(mean.value.facts)  # whose costs are planned and public
    assert corpus.rows.columns == mean.value.rows.columns
    assert "token_cost" not in repr(corpus)


def test_a_cost_stands_at_the_place_its_token_took_in_its_document():
    costs = RealisedCosts.of_nothing(batches=2, tokens_per_batch=5)
    costs.by_draw[:] = [[1, 2, 3, 4, 5], [10, 20, 30, 0, 0]]
    documents = [
        Document(0, private_tokens=3),
        Document(1, private_tokens=1),
        Document(0, private_tokens=2),
        Document(1, private_tokens=2),
    ]
    places = costs.by_position(documents)
    assert places["count"].tolist() == [4, 3, 1]
    assert places["mean"].tolist() == pytest.approx([35 / 4, 37 / 3, 3])
    assert places["p50"].tolist() == pytest.approx([7, 5, 3])
    assert places["p10"].tolist() == pytest.approx([1.9, 2.6, 3])
    assert places["p90"].tolist() == pytest.approx([17, 25, 3])


def test_a_run_without_a_draw_has_no_cost_anywhere():
    places = RealisedCosts.of_nothing(batches=2, tokens_per_batch=5).by_position([])
    assert sorted(places) == ["count", "mean", "p10", "p50", "p90"]
    assert not any(len(values) for values in places.values())


def test_unfinished_documents_are_continued_from_public_prompts_only(cases, endless_model):
    private, method = cases.private(64), get_method("mean_clustered")
    config = config_of("mean_clustered")
    tokens = method(config, cases.terms()).plan(10.0).tokens_per_batch
    longest = tokens - 6  # one whole document, and six tokens of the next
    config = config_of("mean_clustered", max_document_tokens=longest, rejection={"rules": ()})
    _, release = run("mean_clustered", cases, endless_model, private=private, config=config)
    texts = set(private.records["text"])
    read = [set(examples) & texts for examples in endless_model.prompts]
    last_private = max(index for index, hit in enumerate(read) if hit)
    assert endless_model.prompts[last_private + 1 :] == [(), ()]
    facts = release.value.facts
    assert facts["unfinished_documents"] == facts["batches"]
    assert release.value.rows["n_tokens"].to_list() == [longest] * 2 * facts["batches"]


def test_dropping_leaves_only_documents_that_ended_within_the_budget(cases, endless_model):
    config = config_of("mean_clustered", on_exhaustion="drop")
    plan, release = run("mean_clustered", cases, endless_model, config=config)
    facts = release.value.facts
    whole = plan.tokens_per_batch // SMALL["max_document_tokens"]
    assert facts["rows"] == whole * facts["batches"]


def test_every_prompt_holds_records_of_its_own_label_only(cases, language_model):
    private = cases.private(64)
    config = config_of("mean_uniform", examples_per_context=2, batches_per_label=1)
    run("mean_uniform", cases, language_model, private=private, config=config)
    label = dict(zip(private.records["text"], private.records["label"], strict=True))
    pairs = [p for p in language_model.prompts if len(p) == 2 and p[0]]
    assert pairs
    assert all(label[first] == label[second] for first, second in pairs)


def test_public_reference_reads_no_record_and_shares_documents_over_labels(cases, language_model):
    corpus = generate_public_only(
        config_of("mean_uniform"), cases.terms(), cases.public(language_model), 20, cases.silent
    )
    assert {examples for examples in language_model.prompts if examples} <= {("",)}
    counts = corpus.rows["label"].value_counts()
    assert counts["count"].max() <= 10
    assert corpus.facts["documents"] == 20


def test_every_setting_says_what_it_is_and_in_which_unit(name):
    for field in REGISTRY[name].config_type.model_fields.values():
        if field.default != name:
            assert field.description
            assert "(" in field.description or "." in field.description


def test_check_settings_names_each_problem_on_one_line():
    problems = check_settings("mean_clustered", {"clip_bound": -1, "clip": 2, "max_batches": "x"})
    assert len(problems) == 3
    assert all("\n" not in str(problem) for problem in problems)
    assert {problem.field for problem in problems} == {"clip_bound", "clip", "max_batches"}
    assert any("Did you mean" in str(p) or "Known: " in str(p) for p in problems)
    assert check_settings("mean_clustered", SMALL) == []


def test_contradicting_lengths_are_named():
    (problem,) = check_settings(
        "mean_uniform", {"max_document_tokens": 10, "min_tokens_for_new_document": 11}
    )
    assert problem.field == "min_tokens_for_new_document"


# What is counted beforehand is what the decoder counts when the passes run.

RECORDS = 64


def sizes(language_model, records=RECORDS):
    return PublicSizes(
        text_tokens=10, documents=100, records=records, label_texts=("x", "y"), prompts=None,
        tokens_of=lambda words: len(language_model.encode(words)),
    )  # fmt: skip


@pytest.mark.parametrize("finishes", ["drop", "finish_publicly"])
def test_counted_work_is_what_the_decoder_does(finishes, cases, endless_model):
    config = config_of("mean_uniform", batches_per_label=4, max_batches=8, on_exhaustion=finishes)
    before = COUNTS.copy()
    plan, _ = run(
        "mean_uniform", cases, endless_model, private=cases.private(RECORDS), config=config
    )
    done = COUNTS - before
    work = plan.stages[0].work(plan, sizes(endless_model))
    assert work.written == pytest.approx(done["written"], rel=0.15)
    assert work.steps == pytest.approx(2 * plan.tokens_per_batch, rel=0.25)


def test_batches_follow_declared_facts_alone(cases, endless_model):
    config = config_of("mean_clustered")
    method = get_method("mean_clustered")(
        config, cases.terms(public_records=None, has_cluster_histogram=True)
    )
    plan = method.plan(10.0)
    assert plan.refusal is None
    many, few = (plan.stages[0].work(plan, sizes(endless_model, records)) for records in (64, 16))
    assert many.written > few.written


# Room that is asked for before a charge holds what a draw keeps and releases.


@pytest.mark.parametrize("name", NAMES)
def test_batches_that_never_end_fit_into_the_room_of_their_plan(name, cases, endless_model):
    method, plan = make_planned(name, 6.0)
    public, passes = cases.clustered(endless_model), MemoryPasses()
    room = room_of(method, plan.stages[0], public)
    release = cases.release(method, plan, replace(cases.private(64), passes=passes), public)
    assert len(json.dumps(passes.kept)) <= room.kept
    assert len(json.dumps(release.value.rows.to_dicts())) <= min(room.release, room.corpus)


def test_room_follows_the_batches_that_can_be_and_not_a_limit_that_none_reaches(
    cases, language_model
):
    public = cases.clustered(language_model)

    def room(**changes):
        method, plan = make_planned("mean_clustered", 6.0, **changes)
        return room_of(method, plan.stages[0], public).release

    assert room(max_batches=1_000_000) == room(max_batches=8)  # 62 released records, in eights.
    assert room(max_batches=2) == room(max_batches=8) / 4


# Floor and ceiling are sampled as one would without privacy, with the methods' prompts.


def floor(cases, model, **changes):
    config, public = config_of("mean_uniform", **changes), cases.public(model)
    return generate_public_only(config, cases.terms(), public, 40, cases.silent).rows


def non_private(cases, model, records=40, documents=40, examples=1, **changes):
    config, public = config_of("mean_uniform", **changes), cases.public(model)
    inputs = cases.terms(), cases.private(records), public
    return generate_non_private(config, *inputs, documents, cases.silent, examples)


def ceiling(*given, **changes):
    return non_private(*given, **changes).value.rows


@pytest.mark.parametrize("reference", [floor, ceiling])
def test_a_methods_temperature_changes_no_reference(reference, cases, language_model):
    cold, wild = (reference(cases, language_model, temperature=tau) for tau in (0.1, 9.0))
    assert cold.equals(wild)
    assert cold["text"].n_unique() > 5


def test_a_reference_draws_among_the_likeliest_tokens_that_the_method_declares(
    cases, language_model
):
    greedy = floor(cases, language_model, public_top_k=1)
    assert all(greedy.group_by("label").n_unique()["text"] == 1)
    assert floor(cases, language_model)["text"].n_unique() > 5


def test_the_ceiling_shows_as_many_different_records_of_one_label_as_it_is_asked_for(
    cases, language_model
):
    label_of = dict(cases.private(40).records.select("text", "label").iter_rows())
    non_private(cases, language_model, documents=30, examples=3)
    shown = language_model.prompts[-30:]
    assert all(len(set(examples)) == 3 for examples in shown)
    assert all(len({label_of[text] for text in examples}) == 1 for examples in shown)
    assert len({label_of[examples[0]] for examples in shown}) == 2


def test_the_ceiling_shows_what_a_label_has_where_it_has_fewer(cases, language_model):
    made = non_private(cases, language_model, records=4, documents=6, examples=50)
    assert made.value.facts["documents"] == 6
    assert (made.cost.guarantee, made.cost.event) == (GuaranteeType.NONE, None)


# Planted keys are read by the decoder that a model has.

CHANGES = {"max_document_tokens": 12, "min_tokens_for_new_document": 2, "public_top_k": 100}


def test_a_model_without_a_folder_is_decoded_and_priced_by_transformers(cases):
    terms = cases.terms(language_model=LanguageModelSpec(kind="smollm2"))
    method = bound_method("mean_uniform", CHANGES, terms)
    copying = CopyingModel()
    in_folder = SimpleNamespace(encode=copying.encode, source="folder")
    assert method.terms.decodes_exactly
    assert batches_task(method, 9.0, in_folder).method.terms.decodes_exactly
    assert not batches_task(method, 9.0, copying).method.terms.decodes_exactly
    assert batches_task(method, 9.0, in_folder).method.config.logit_slack == 0.0
    assert batches_task(method, 9.0, copying).method.config.logit_slack > 0.0


def test_a_run_refuses_rounding_that_is_not_charged_whoever_calls_it(cases):
    terms = replace(cases.terms(), language_model=None)
    method = bound_method("mean_uniform", {"logit_slack": 0.0}, terms)
    public = PublicInputs(language_model=CopyingModel())
    stage = method.plan(3.0).stage(CANDIDATE_CORPUS)
    with pytest.raises(ValueError, match="Expected logit_slack > 0"):
        _ = Drawing(method=method, stage=stage, batches=None, public=public).decoder
