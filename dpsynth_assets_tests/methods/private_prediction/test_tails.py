"""Tails in plans: stated from public facts, refused beyond a tenth, with a remedy that does it."""

import json

import numpy as np
import pytest

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.public_spec import LanguageModelSpec
from dpsynth_assets.methods.dataset_plan import cohort_terms
from dpsynth_assets.methods.planning import plan_dataset, price_undeclared
from dpsynth_assets.methods.private_prediction.vocabulary_tails import filled_share, share_at_floor
from dpsynth_assets.methods.registry import REGISTRY, bound_method
from dpsynth_assets.methods.stages import percent
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.methods.private_prediction.conftest import make_terms
from dpsynth_assets_tests.privacy.oracles import (
    difference_scores_oracle,
    mean_scores_oracle,
    median_oracle,
)

SMOLLM2 = {"kind": "smollm2"}


def base(**language_model):
    return PublicDataSpec(name="somewhere", language_model=language_model)


def spec(method, settings=None, **facts):
    return private(
        columns={"labels": ["label"]},
        public_facts={"labels": {"label": ["a", "b"]}, "records": 20_000} | facts,
        budget={"epsilon": 10.0, "delta": 1e-6, "accepts_ex_post": True},
        cluster_histogram={"budget_share": 0.1},
        public_data="somewhere",
        methods=[{"method": method, "budget_share": 0.5, "settings": settings or {}}],
    )


def planned(method, settings=None, **language_model):
    declared = base(**language_model) if language_model else None
    return plan_dataset(spec(method, settings), declared).methods[0].plan


CLIPPED = ("mean_uniform", "mean_clustered", "mean_svt", "median_clustered")


@pytest.mark.parametrize("method", [*CLIPPED, "invisible_ink"])
def test_defaults_of_a_pretrained_model_have_a_short_tail(method):
    plan = planned(method, **SMOLLM2)
    assert plan.refusal is None
    assert plan.tail.typical < 0.05


@pytest.mark.parametrize("method", CLIPPED)
def test_a_whole_vocabulary_at_the_floor_is_refused_and_every_remedy_does_it(method):
    settings = {"clip_bound": 6.0}
    if method != "median_clustered":
        settings["public_top_k"] = None
    plan = planned(method, settings, **SMOLLM2)
    assert plan.tail.typical == pytest.approx(share_at_floor(49_152, 11.4))
    warmer = planned(method, settings | {"temperature": 2.0}, **SMOLLM2)
    assert warmer.tail.typical == pytest.approx(share_at_floor(49_152, 5.7))
    assert "got 36% with 49,152 tokens, clip_bound 6, temperature 1" in plan.refusal
    assert plan.charges == {}
    assert "a larger clip_bound" in plan.refusal
    assert planned(method, settings | {"clip_bound": 6.9}, **SMOLLM2).refusal is None
    assert ("public_top_k: 100" in plan.refusal) == (method != "median_clustered")
    if method != "median_clustered":
        assert planned(method, settings | {"public_top_k": 100}, **SMOLLM2).refusal is None


def test_batches_of_which_few_contexts_remain_are_refused():
    """Two records a hashed context: e^-2 of the contexts, and a mean as much flatter."""
    plan = planned("mean_uniform", {"examples_per_context": 2}, **SMOLLM2)
    assert "batches 14% full" in plan.refusal
    assert "one example a context" in plan.refusal
    assert "public_top_k" not in plan.refusal


def test_a_label_with_too_few_records_for_its_one_batch_is_refused():
    """100 records of two labels in batches of 256: a fifth of the contexts, a mean as flat."""
    few = spec("mean_uniform", {"expected_batch_size": 256}, records=100)
    (uniform,) = plan_dataset(few, base(**SMOLLM2)).methods
    assert "batches 20% full. Set a smaller expected_batch_size" in uniform.plan.refusal
    full = spec("mean_uniform", {"expected_batch_size": 50, "clip_bound": 6.0}, records=100)
    (uniform,) = plan_dataset(full, base(**SMOLLM2)).methods
    assert uniform.plan.tail.typical < 0.01


@pytest.mark.parametrize(("vocabulary", "refused"), [(2048, False), (40_000, True)])
def test_a_small_vocabulary_needs_no_public_support(tmp_path, vocabulary, refused):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": vocabulary}))
    settings = {"public_top_k": None, "clip_bound": 6.0}
    plan = planned("mean_clustered", settings, kind="pretrained", model=str(tmp_path))
    assert plan.tail.tokens == vocabulary
    assert (plan.refusal is not None) == refused


def test_an_undeclared_vocabulary_is_said_to_be_unknown():
    for plan in (
        planned("mean_clustered"),
        planned("median_clustered", kind="pretrained", model="a/b"),
    ):
        assert plan.refusal is None
        assert plan.tail.typical is None
        assert "unknown" in plan.tail.describe()
    known = planned("mean_clustered", kind="pretrained", model="a/b")
    assert known.tail.tokens == 100


@pytest.mark.parametrize(("content", "tokens"), [
    ('{"vocab_size": 256000}', 256_000), ('{"text_config": {"vocab_size": 256000}}', 256_000),
    ("", None), ("[]", None), ('{"vocab_size": "many"}', None), ("{}", None),
])  # fmt: skip
def test_the_vocabulary_of_a_folder_is_read_from_its_config(tmp_path, content, tokens):
    (tmp_path / "config.json").write_text(content)
    plan = planned("median_clustered", kind="pretrained", model=str(tmp_path))
    assert plan.tail.tokens == tokens


def test_invisible_ink_over_all_tokens_is_refused_and_over_a_few_is_not():
    plan = planned("invisible_ink", {"top_k": None}, **SMOLLM2)
    assert "Set top_k: 100" in plan.refusal
    assert planned("invisible_ink", {"top_k": 100}, **SMOLLM2).tail.typical < 0.01


def test_other_methods_have_no_tail_and_the_ledger_reads_of_none():
    declared = spec("mean_clustered")
    plan = plan_dataset(declared, base(**SMOLLM2))
    others = {each.method.name: each.plan for each in price_undeclared(declared, plan)}
    assert others["aug_pe"].tail is None
    assert others["mean_uniform"].tail is not None
    assert not any("tail" in name for name in plan.methods[0].plan.parameters)


def test_settings_of_the_file_come_before_those_of_the_base():
    plan = planned("mean_clustered", {"public_top_k": 500}, **SMOLLM2)
    assert plan.parameters["public_top_k"] == 500


@pytest.mark.parametrize(("share", "text"), [
    (0.0, "<0.01%"), (0.00123, "0.13%"), (0.0341, "3.5%"), (0.5, "50%"), (0.999, ">99%"),
])  # fmt: skip
def test_shares_are_written_rounded_up(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(("k", "load"), [(2, 1.0), (2, 0.5), (3, 0.3), (4, 0.3)])
def test_the_share_of_hashed_contexts_that_are_kept_is_that_of_draws(k, load):
    settings = {"expected_batch_size": 50, "examples_per_context": k, "batches_per_label": 20}
    declared = spec("mean_uniform", settings, records=round(load * 2 * 20 * 50 * k))
    terms = cohort_terms(declared, base(**SMOLLM2))
    method = bound_method("mean_uniform", settings, terms)
    slots = np.random.default_rng(0).poisson(load, (400_000, k))
    kept = (slots == 1).all(axis=1).mean()
    assert filled_share(method.declared) == pytest.approx(kept, rel=0.06)


def test_methods_on_another_release_have_the_settings_of_those_they_draw_like():
    chosen = {
        name: REGISTRY[name].advice.defaults(
            make_terms(language_model=LanguageModelSpec(kind="smollm2"))
        )
        for name in ("mean_svt", "mean_svt_on_generator")
    }
    assert chosen["mean_svt_on_generator"] == chosen["mean_svt"]
    assert all("public_top_k" in settings for settings in chosen.values())


# The stated share of draws on tokens nobody proposes, by the scores that mechanisms draw from.

V, S = 600, 4


def shares(scores):
    """Shares of draws among tokens of such scores."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def contexts(depth):
    """(S, V) logits: one token leads all others; a constant that no mechanism may see differs."""
    leading = np.array([0.0] + [-depth] * (V - 1))
    return leading + np.linspace(-3, 3, S)[:, None]


@pytest.mark.parametrize(("clip", "temperature"), [(3.0, 1.0), (4.0, 1.3), (2.0, 0.5)])
def test_means_and_medians_draw_from_the_floor_as_often_as_stated(clip, temperature):
    settings = {"clip_bound": clip, "temperature": temperature}
    mean = mean_scores_oracle(contexts(50.0), expected_batch_size=S, **settings)
    median, _ = median_oracle(contexts(50.0), changes=1, **settings)
    for scores in (mean, median):
        assert 1 - shares(scores)[0] == pytest.approx(share_at_floor(V, 2 * clip / temperature))


@pytest.mark.parametrize(("against", "gained"), [(5.0, 0.0), (60.0, 2.0)])
def test_differences_draw_public_words_as_often_as_stated(against, gained):
    """Contexts say what the public prompt says, or all lift the leading token by the bound."""
    scores = difference_scores_oracle(
        contexts(against),
        contexts(5.0)[0],
        np.arange(V),
        clip_bound=1.0,
        expected_batch_size=S,
        temperature=1.0,
    )
    assert 1 - shares(scores)[0] == pytest.approx(share_at_floor(V, 5.0 + gained), rel=1e-3)
