"""Laws of few-shot generation: its plan, its price, and what reaches a prompt."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.private_prediction import few_shot_writer
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.methods.private_prediction.few_shot import FewShot
from dpsynth_assets.methods.private_prediction.few_shot_writer import (
    FewShotTask,
    LabelWriter,
    texts_by_label,
)
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.accounting import epsilon_of, filter_epsilon
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.noisy_probabilities import NoisyProbabilities
from dpsynth_assets.privacy.renyi import filter_order, renyi_divergence, zcdp_epsilon, zcdp_rho

DELTA = 1e-5
SMALL = {
    "subsets": 8,
    "examples_per_subset": 2,
    "documents_per_label": 2,
    "max_document_tokens": 5,
    "max_example_tokens": 10,
    "top_k": 10,
}


def config_of(**changes):
    return FewShotConfig(**(SMALL | changes))


def run(cases, model, private=None, config=None, epsilon=10.0):
    method = FewShot(config or config_of(), cases.terms())
    plan = method.plan(epsilon)
    private = cases.private(64) if private is None else private
    return plan, cases.release(method, plan, private, cases.public(model))


def worth(terms, share):
    """ε of a share of the cohort's ρ, as planning computes it."""
    return zcdp_epsilon(share * (1 - 1e-9) * zcdp_rho(terms.epsilon, terms.delta), terms.delta)


# Plan and price


def test_every_token_of_a_label_is_one_sampled_step(cases):
    plan = FewShot(config_of(), cases.terms()).plan(10.0)
    assert plan.event == PoissonGaussianEvent(
        sampling_probability=8 * 2 * 2 / 64,  # subsets, examples, labels; declared records
        noise_multiplier=plan.parameters["noise_multiplier"],
        steps=2 * 5,
    )
    assert plan.rows_estimate == 4


@pytest.mark.parametrize("records", [64, 2_000, 200_000])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_less_noise_would_overspend(cases, records, share):
    terms = cases.terms(public_records=records)
    target = worth(terms, share)
    plan = FewShot(config_of(), terms).plan(target)
    less = replace(plan.event, noise_multiplier=0.998 * plan.event.noise_multiplier)
    order = filter_order(terms.epsilon, DELTA)
    room = order * share * zcdp_rho(terms.epsilon, DELTA)
    assert plan.epsilon <= target
    assert renyi_divergence(plan.event, order) <= room
    alone = epsilon_of([less], DELTA, "zcdp") > target
    assert alone or renyi_divergence(less, order) > room


@pytest.mark.parametrize("records", [64, 20_000])
def test_shares_that_sum_to_one_pass_the_ledgers_filter(cases, records):
    terms = cases.terms(public_records=records)
    events = [
        FewShot(config_of(), terms).plan(worth(terms, share)).event for share in (0.5, 0.3, 0.2)
    ]
    assert filter_epsilon(events, DELTA, terms.epsilon) <= terms.epsilon


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"relation": NeighboringRelation.ZERO_OUT},
        {"relation": NeighboringRelation.REPLACE_ONE},
        {"unit": PrivacyUnit(column="person", max_records=2)},
    ],
    ids=["add-remove", "zero-out", "replace-one", "two records a unit"],
)
def test_every_relation_and_unit_is_planned_within_its_target(cases, changes):
    terms = cases.terms(epsilon=40.0, **changes)
    plan = FewShot(config_of(subsets=32), terms).plan(40.0)
    assert plan.refusal is None
    assert plan.epsilon <= 40.0
    assert filter_epsilon([plan.event], DELTA, 40.0) <= 40.0


def test_an_undeclared_number_of_records_is_refused(cases, language_model):
    terms = cases.terms(public_records=None)
    plan = FewShot(config_of(), terms).plan(10.0)
    assert plan.event is None
    assert "public_facts.records" in plan.refusal
    with pytest.raises(TypeError, match="planned stage"):
        cases.release(
            FewShot(config_of(), terms), plan, cases.private(9), cases.public(language_model)
        )


def test_a_plan_without_budget_is_refused(cases):
    plan = FewShot(config_of(), cases.terms()).plan(0.0)
    assert plan.event is None
    assert "target_epsilon > 0" in plan.refusal


def test_noise_that_drowns_every_agreement_is_refused(cases):
    method = FewShot(config_of(), cases.terms())
    tail = method.plan(0.1).tail
    assert tail.agreed > 0.5
    assert "noise of std" in tail.refusal
    assert "Raise target_epsilon or subsets" in tail.refusal


def test_few_records_are_all_sampled_and_never_more_than_once(cases):
    terms = cases.terms(public_records=3, epsilon=100.0)
    plan = FewShot(config_of(), terms).plan(100.0)
    assert plan.event.sampling_probability == 1.0


def test_what_runs_and_what_it_costs_is_the_mechanism_of_the_stage(cases, endless_model):
    method = FewShot(config_of(), cases.terms())
    plan = method.plan(10.0)
    shorter = method.plan_at_noise(2 * plan.parameters["noise_multiplier"])
    public = cases.public(endless_model)
    release = cases.release(method, shorter, cases.private(9), public)
    assert release.cost.event == shorter.stages[0].mechanism.event() != plan.event
    (stage,) = plan.stages
    assert stage.mechanism.steps_left == 10  # Every label draws from one of its own.


def test_logits_that_may_move_get_more_noise_at_the_same_price(cases):
    exact, moving = (
        FewShot(config_of(logit_slack=slack), cases.terms()).plan(10.0) for slack in (0.0, 0.1)
    )
    assert exact.event == moving.event
    # Seven other subsets, each moved by 0.1 / √2 where the record's own moves by √2.
    expected = exact.parameters["noise_std"] * (1 + 7 * 0.1 / 2)
    assert moving.parameters["noise_std"] == pytest.approx(expected)


# What runs


@pytest.fixture
def steps(monkeypatch):
    """Numbers of records that each drawn sample was drawn from, and the subsets drawn."""
    drawn = []
    draw = NoisyProbabilities.draw

    def spy(self, private_records):
        subsets = draw(self, private_records)
        drawn.append((private_records, subsets))
        return subsets

    monkeypatch.setattr(NoisyProbabilities, "draw", spy)
    return drawn


@pytest.mark.parametrize("records", [0, 1, 64])
def test_every_label_writes_whatever_it_holds(cases, language_model, records):
    _, release = run(cases, language_model, private=cases.private(records))
    assert release.value.facts["demonstrations"] == 4
    assert release.value.facts["rows"] == len(release.value.rows)
    assert set(release.value.rows["label"]) <= {"x", "y"}


def test_private_data_is_read_at_most_t_times_a_label(cases, endless_model, steps):
    _, release = run(cases, endless_model, private=cases.private(31))
    assert [records for records, _ in steps] == [16] * 10 + [15] * 10
    assert release.value.facts["private_tokens"] == 20


def test_a_step_beyond_the_plan_reads_nothing_private(cases, endless_model, monkeypatch):
    config, terms = config_of(), cases.terms()
    mechanism = FewShot(config, terms).plan(10.0).stages[0].mechanism
    task = FewShotTask(config=config, terms=terms, public=cases.public(endless_model))
    writer = LabelWriter(task, 0, ["abc", "def"], mechanism)
    written = [writer.write() for _ in range(config.documents_per_label)]
    assert [document.steps for document in written] == [5, 5]
    endless_model.prompts.clear()
    with pytest.raises(UnaccountedReleaseError):
        writer.write()
    assert endless_model.prompts == []


def test_a_short_text_leaves_its_steps_unused_and_charged(cases, language_model, monkeypatch):
    monkeypatch.setattr(NoisyProbabilities, "_support", lambda self, logits: torch.tensor([1]))
    plan, release = run(cases, language_model)
    assert release.value.facts["private_tokens"] == 4  # every document's end token
    assert release.cost.event.steps == plan.event.steps == 10
    assert release.value.rows.is_empty()


def test_a_record_stands_in_one_prompt_of_a_step_at_most(cases, endless_model, monkeypatch):
    written, context_prompts = [], few_shot_writer.context_prompts

    def spy(model, label_text, contexts, **settings):
        written.append(contexts)
        return context_prompts(model, label_text, contexts, **settings)

    monkeypatch.setattr(few_shot_writer, "context_prompts", spy)
    run(cases, endless_model)
    assert len(written) == 20
    assert any(text for contexts in written for texts in contexts for text in texts)
    for contexts in written:
        assert len(contexts) == 8
        assert max(len(texts) for texts in contexts) <= 2
        shown = [text for texts in contexts for text in texts]
        assert len(shown) == len(set(shown))


def test_prompts_hold_texts_of_their_own_label_alone(cases, endless_model):
    private = cases.private(20)
    texts = private.records.filter(private.records["label"] == "x")["text"].to_list()
    config, terms = config_of(), cases.terms()
    mechanism = FewShot(config, terms).plan(10.0).stages[0].mechanism
    task = FewShotTask(config=config, terms=terms, public=cases.public(endless_model))
    by_label = texts_by_label(private.records, terms.labels)
    writer = LabelWriter(task, 0, by_label[0], mechanism)
    endless_model.prompts.clear()
    writer.write()
    used = {text for examples in endless_model.prompts for text in examples}
    assert used <= set(texts)
    assert used


class Shapes:
    """What every forward pass of a run was padded to, and how many prompts it had."""

    def __init__(self, monkeypatch):
        self.seen = []
        contexts = TransformersDecoder.open

        def spy(decoder, prompts, **settings):
            kind = "public" if settings.get("public") else "private"
            self.seen.append((kind, len(prompts), settings["prompt_columns"]))
            return contexts(decoder, prompts, **settings)

        monkeypatch.setattr(TransformersDecoder, "open", spy)


def test_shapes_of_passes_and_public_logits_are_no_function_of_private_texts(
    cases, endless_model, monkeypatch
):
    """Two cohorts, the same released tokens: equal shapes, public logits equal to the last bit."""
    shapes, public = Shapes(monkeypatch), []

    def scripted(self, private_logits, public_logits):
        self._meter.release(len(private_logits))
        public.append(public_logits.clone())
        return 5 + len(public) % 3

    monkeypatch.setattr(NoisyProbabilities, "select", scripted)
    long = cases.private(64)
    short = PrivateInputs(
        records=long.records[:3].with_columns(text=long.records["text"][:3].str.head(2))
    )
    seen = []
    for private in (long, short):
        shapes.seen.clear()
        public.clear()
        run(cases, endless_model, private=private)
        seen.append((list(shapes.seen), list(public)))
    assert seen[0][0] == seen[1][0]
    assert all(torch.equal(a, b) for a, b in zip(seen[0][1], seen[1][1], strict=True))


def test_without_noise_to_speak_of_the_text_is_what_the_records_make_likeliest(
    cases, endless_model
):
    """One subset of two equal records out of four: greedy decoding after that text twice."""
    config = config_of(subsets=1, documents_per_label=1, top_k=31)
    terms = cases.terms(epsilon=1e9, labels=("x",), label_texts=("ex",), public_records=2)
    private = cases.private(4)
    same = private.records.with_columns(text=pl.lit("a bee sees a sea"))
    method, public = FewShot(config, terms), cases.public(endless_model)
    release = cases.release(method, method.plan(1e9), PrivateInputs(records=same), public)
    ids = endless_model.prompt_ids("ex", same["text"].to_list()[:2], 10)
    expected = []
    for _ in range(5):
        logits = endless_model.model(torch.tensor([ids + expected])).logits[0, -1]
        expected.append(int(logits.argmax()))
    assert release.value.rows["text"].to_list() == [endless_model.decode(expected).strip()]


# Extra documents


def test_extra_documents_read_demonstrations_alone_and_cost_nothing(
    cases, language_model, steps, monkeypatch
):
    private, read = cases.private(64), []
    write = few_shot_writer._extra_prompt

    def noted(task, label, texts):
        read.append(texts)
        return write(task, label, texts)

    monkeypatch.setattr(few_shot_writer, "_extra_prompt", noted)
    plan, release = run(cases, language_model, private, config_of(extra_documents=6))
    without = FewShot(config_of(), cases.terms()).plan(10.0)
    assert plan.event == without.event
    rows = release.value.rows
    demonstrations = rows.filter(rows["origin"] == "demonstration")
    extra = rows.filter(rows["origin"] == "extra")
    assert release.value.facts["extra_documents"] == 6
    assert extra["batch"].is_null().all()
    assert demonstrations["batch"].is_not_null().all()
    released = {*demonstrations["text"]}
    assert len(read) == 6
    shown = {text for examples in read for text in examples}
    assert shown <= released
    assert not shown & {*private.records["text"]}


def test_extra_documents_fit_whenever_demonstrations_do(cases, endless_model):
    """The check asks for examples of 10 tokens; demonstrations of 40 are longer."""
    config = config_of(max_document_tokens=40, extra_documents=4, rejection={"rules": ()})
    frame = len(endless_model.prompt_ids("why", ["", ""], 1))
    endless_model.model.config.max_position_embeddings = frame + 2 * 10 + 40
    terms = cases.terms(epsilon=100.0)
    method, public = FewShot(config, terms), cases.public(endless_model)
    plan = method.plan(100.0)
    plan.stages[0].check(public)
    release = cases.release(method, plan, cases.private(64), public)
    rows = release.value.rows
    assert rows.filter(rows["origin"] == "extra")["n_tokens"].to_list() == [40] * 4


def test_demonstrations_that_fit_are_shown_whole(cases, endless_model):
    seen, prompt_ids = [], endless_model.prompt_ids
    endless_model.prompt_ids = lambda *given: seen.append(given) or prompt_ids(*given)
    run(cases, endless_model, config=config_of(max_example_tokens=3, extra_documents=4))
    assert [cut for _, examples, cut in seen if any(examples)][-4:] == [5] * 4


def test_no_progress_is_told_of_a_document_before_it_is_kept(cases, language_model):
    class Passes:
        kept = 0

        def load(self, number):
            return None

        def save(self, number, values):
            Passes.kept += 1

    told = []
    method = FewShot(config_of(), cases.terms())
    cases.release(
        method,
        method.plan(10.0),
        replace(cases.private(8), passes=Passes()),
        cases.public(language_model),
        lambda share, message: told.append((Passes.kept, share, message)),
    )
    charged = [(n, n / 4, f"{5 * n} of 20 private tokens charged") for n in (1, 2, 3, 4)]
    assert told == charged


def test_a_plan_at_the_noise_of_another_is_that_plan(cases):
    plan = FewShot(config_of(), cases.terms()).plan(10.0)
    noise = plan.parameters["noise_multiplier"]
    assert FewShot(config_of(), cases.terms()).plan_at_noise(noise) == plan
    shorter = FewShot(config_of(documents_per_label=1), cases.terms()).plan_at_noise(noise)
    assert (shorter.event.noise_multiplier, shorter.event.steps) == (noise, 5)
    assert shorter.epsilon < plan.epsilon
    with pytest.raises(ValueError, match="declared number of records"):
        FewShot(config_of(), cases.terms(public_records=None)).plan_at_noise(noise)
