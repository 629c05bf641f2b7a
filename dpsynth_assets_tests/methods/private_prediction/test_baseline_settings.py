"""The settings of the papers' baselines are settings here: k examples, token counts.

Baseline++ of Amin et al. 2025 is a pretrained model with its template and k = 2 examples in each of
s parallel contexts (section 6.1, D.1, Table 10); the baseline of Amin et al. 2024 has k = 1.
"""

import pytest

from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.private_prediction.aggregates import MeanUniform
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.split_batches import split_batches
from dpsynth_assets.privacy.guarantees import NeighboringRelation

AG_NEWS = 108_000
DELTA = AG_NEWS**-1.1


def baseline(k, **changes):
    fields = {
        "expected_batch_size": 64,
        "examples_per_context": k,
        "clip_bound": 9.0,
        "temperature": 1.5,
        "logit_slack": 0.0,
    }
    return MeanUniformConfig(**(fields | changes))


def tokens(cases, config, epsilon=10.0, **changes):
    terms = cases.terms(epsilon=epsilon, delta=DELTA, public_records=AG_NEWS, **changes)
    return MeanUniform(config, terms).plan(epsilon).tokens_per_batch


@pytest.mark.parametrize(("s", "epsilon", "printed"), [(64, 10.0, 373), (256, 3.0, 733)])
@pytest.mark.parametrize("k", [1, 2])
def test_a_batch_draws_as_many_tokens_as_the_paper_prints_for_either_k(
    cases, k, s, epsilon, printed
):
    hashed = baseline(k, expected_batch_size=s)
    slots = baseline(k, expected_batch_size=s, batching="slots")
    assert tokens(cases, hashed, epsilon) == printed
    zero_out = {"relation": NeighboringRelation.ZERO_OUT, "public_slots": True}
    assert tokens(cases, slots, epsilon, **zero_out) == printed


def test_a_replaced_record_of_a_pair_pays_for_two_vectors(cases):
    # What the paper's two records a context cost where neither rule holds (errata B-000.1).
    replaced = tokens(cases, baseline(2), relation=NeighboringRelation.REPLACE_ONE)
    assert replaced == pytest.approx(373 / 4, abs=1)


@pytest.mark.statistical
@pytest.mark.parametrize("k", [1, 2])
def test_hashed_contexts_hold_k_records_and_a_share_of_e_to_the_minus_k_of_them_counts(cases, k):
    config = baseline(k, expected_batch_size=50, max_batches=10_000)
    private = cases.private(20_000)
    declared = MeanUniform(config, cases.terms(public_records=20_000)).declared
    made = split_batches(declared, private, cases.public(None)).placed(private)
    contexts = [context for batch in made for context in batch.contexts]
    assert {len(context) for context in contexts} == {k}
    places = 50 * len(made)
    if k == 1:
        assert len(contexts) == 20_000
    else:
        share = 0.13534  # of Poisson(1) records in each of two slots; five standard deviations
        assert abs(len(contexts) / places - share) < 5 * (share / places) ** 0.5 + 0.002


def test_batches_that_unequal_labels_may_overfill_are_charged_for_it(cases):
    def slack_part(**changes):
        config = baseline(1, logit_slack=1e-4, batches_per_forward=4, **changes)
        terms = cases.terms(public_records=64 * 40)  # two labels
        free = MeanUniform(config.model_copy(update={"logit_slack": 0.0}), terms)
        return MeanUniform(config, terms).mean_mechanism.eta - free.mean_mechanism.eta

    equal = 2 * 1e-4 * 4 * 4 / 1.5
    assert slack_part() == pytest.approx(2 * equal)  # one label may have all records
    assert slack_part(batches_per_label=40) == pytest.approx(equal)
    assert slack_part(batches_per_label=4) == pytest.approx(10 * equal)


def test_batches_by_places_refuse_a_number_of_batches(cases):
    config = baseline(1, batching="slots", batches_per_label=3)
    terms = cases.terms(relation=NeighboringRelation.ZERO_OUT, public_slots=True)
    refusal = priced(MeanUniform(config, terms), 10.0).refusal
    assert refusal is not None
    assert "batches_per_label" in refusal
