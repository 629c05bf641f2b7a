"""Exact white-box audit of the mean mechanism: no statistics, every likelihood is computed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets_tests.privacy.batched import batched

VOCABULARY = 40
ACTIVE = np.array([0])


def mechanism(relation, records=1, **settings):
    return batched(
        MeanTokenMechanism,
        clip_bound=9.0,
        temperature=1.5,
        expected_batch_size=64,
        relation=NeighboringRelation(relation),
        max_records_per_unit=records,
        **settings,
    )


def log_probabilities(tested, rows):
    rows = torch.as_tensor(np.asarray(rows), dtype=torch.float64).reshape(-1, VOCABULARY)
    batch_of_row = torch.zeros(len(rows), dtype=torch.int64)
    scores = tested.private_scores(rows, batch_of_row, ACTIVE)[0]
    return torch.log_softmax(scores, 0).numpy()


def likelihood_range(tested, before, after):
    ratio = log_probabilities(tested, before) - log_probabilities(tested, after)
    return ratio.max() - ratio.min()


def extreme(positions):
    row = np.full(VOCABULARY, -50.0)
    row[positions] = 50.0
    return row


def batch(generator, size):
    topic = generator.normal(0, 5, VOCABULARY)
    return topic + generator.normal(0, 3, (size, VOCABULARY))


def neighbours(generator, relation, size, records=1):
    """A batch and its neighbour: adversarial or ordinary records, in at most `records` places."""
    rows = batch(generator, size)

    def record():
        if generator.random() < 0.5:
            return extreme(generator.random(VOCABULARY) < generator.random())
        return batch(generator, 1)[0]

    unit = np.array([record() for _ in range(records)])
    before = np.vstack([rows, unit])
    if relation == "replace-one":
        return before, np.vstack([rows, [record() for _ in range(records)]])
    return before, rows


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(0, 130),
    st.sampled_from(["add-remove", "zero-out", "replace-one"]),
    st.integers(1, 3),
)
def test_log_likelihood_ratio_ranges_over_at_most_eta(seed, size, relation, records):
    tested = mechanism(relation, records)
    before, after = neighbours(np.random.default_rng(seed), relation, size, records)
    assert likelihood_range(tested, before, after) <= tested.eta * (1 + 1e-9)


@pytest.mark.parametrize("size", [0, 1, 64, 200])
def test_add_remove_attains_eta(size):
    tested = mechanism("add-remove")
    rows = batch(np.random.default_rng(0), size)
    observed = likelihood_range(tested, np.vstack([rows, extreme([3])]), rows)
    assert observed == pytest.approx(tested.eta, rel=1e-9)
    assert tested.eta == pytest.approx(0.1875)


def test_replace_one_attains_twice_the_add_remove_range():
    rows = batch(np.random.default_rng(0), 10)
    observed = likelihood_range(
        mechanism("replace-one"), np.vstack([rows, extreme([3])]), np.vstack([rows, extreme([8])])
    )
    assert observed == pytest.approx(0.375, rel=1e-9)


def test_two_records_in_one_prompt_break_the_add_remove_range():
    # Planted bug: a prompt with two records of which one goes, charged as a toggle (B-000.1).
    before = np.vstack([extreme([3])])
    after = np.vstack([extreme([8])])
    observed = likelihood_range(mechanism("add-remove"), before, after)
    assert observed > mechanism("add-remove").eta * 1.9
    assert observed <= mechanism("add-remove", contexts_changed="replace").eta * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 64))
def test_numerical_batch_variance_stays_within_the_slack(seed, size):
    # A neighbour also moves every other row's logits by up to the slack.
    slack = 0.05
    generator = np.random.default_rng(seed)
    tested = mechanism("add-remove", logit_slack=slack)
    rows = batch(generator, size)
    moved = rows + slack * generator.choice([-1.0, 1.0], rows.shape)
    observed = likelihood_range(tested, np.vstack([rows, extreme([3])]), moved)
    assert observed <= tested.eta * (1 + 1e-9)


def test_the_published_loop_cannot_overshoot_its_private_tokens():
    # Algorithm 1 of Amin et al. 2024 tests t < r between texts only; texts run 150 tokens here.
    tested, meter = mechanism("add-remove"), PrivateTokenMeter(100, 1)
    logits = torch.zeros(2, VOCABULARY)
    batch_of_row = torch.zeros(2, dtype=torch.int64)
    drawn = []

    def published_loop():
        while len(drawn) < 100:
            drawn.extend(tested.select(logits, batch_of_row, ACTIVE, meter)[0] for _ in range(150))

    with pytest.raises(UnaccountedReleaseError):
        published_loop()
    assert len(drawn) == 100
