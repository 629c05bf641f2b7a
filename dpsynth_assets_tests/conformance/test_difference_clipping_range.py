"""Exact white-box audit of difference clipping: no statistics, every likelihood is computed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism, public_support
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets_tests.privacy.batched import batched

VOCABULARY = 40
SIZE = 8
RELATIONS = [str(relation) for relation in NeighboringRelation]
SIZES = [0, 1, 2, SIZE, 200]


def mechanism(relation, records=1, **changes):
    return batched(
        DifferenceTokenMechanism,
        clip_bound=1.0,
        temperature=1.1,
        expected_batch_size=SIZE,
        relation=NeighboringRelation(relation),
        max_records_per_unit=records,
        **changes,
    )


def log_probabilities(tested, rows, public, *, tokens=None):
    """(V,) log-probabilities of the next token, −inf off the public support."""
    rows = torch.as_tensor(np.asarray(rows), dtype=torch.float64).reshape(-1, VOCABULARY)
    public = torch.as_tensor(public, dtype=torch.float64)
    support = tested.support(public, None) if tokens is None else tokens
    scores = tested.private_scores(rows, public, torch.arange(len(rows)), support)
    whole = torch.full((VOCABULARY,), -torch.inf, dtype=torch.float64)
    whole[support] = torch.log_softmax(scores, 0)
    return whole.numpy()


def spread(before, after):
    """Range of the log-likelihood ratio; infinite where only one side can draw a token."""
    if ((before == -np.inf) != (after == -np.inf)).any():
        return np.inf
    possible = before > -np.inf
    ratio = before[possible] - after[possible]
    return ratio.max() - ratio.min()


def likelihood_range(tested, before, after, public):
    return spread(*(log_probabilities(tested, rows, public) for rows in (before, after)))


def extreme(positions):
    row = np.full(VOCABULARY, -50.0)
    row[positions] = 50.0
    return row


def public_law(generator):
    """Flat, ordinary or peaked public logits with a constant of their own."""
    return generator.normal(0, generator.choice([0.0, 2.0, 9.0]), VOCABULARY) + generator.normal()


def record(generator, public):
    """An adversarial record, or one whose prompt is near the public prompt."""
    kind = generator.random()
    if kind < 0.1:
        return np.full(VOCABULARY, generator.choice([np.nan, np.inf, -np.inf]))
    if kind < 0.5:
        return extreme(generator.random(VOCABULARY) < generator.random())
    return public + generator.normal(0, 3) + generator.normal(0, 1, VOCABULARY)


def batch(generator, public, size):
    rows = [record(generator, public) for _ in range(size)]
    return np.array(rows).reshape(-1, VOCABULARY)


def neighbours(generator, relation, size, public, records=1):
    rows = batch(generator, public, size)
    before = np.vstack([rows, batch(generator, public, records)])
    if relation == "replace-one":
        return before, np.vstack([rows, batch(generator, public, records)])
    return before, rows


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SIZES),
    st.sampled_from(RELATIONS),
    st.integers(1, 3),
    st.sampled_from([None, 1, 5]),
)
def test_log_likelihood_ratio_ranges_over_at_most_eta(seed, size, relation, records, top_k):
    generator = np.random.default_rng(seed)
    tested, public = mechanism(relation, records, top_k=top_k), public_law(generator)
    before, after = neighbours(generator, relation, size, public, records)
    assert likelihood_range(tested, before, after, public) <= tested.eta * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
@pytest.mark.parametrize("size", SIZES)
def test_one_record_attains_eta(relation, size):
    tested, public = mechanism(relation), np.zeros(VOCABULARY)
    rows = batch(np.random.default_rng(0), public, size)
    observed = likelihood_range(tested, np.vstack([rows, extreme([3])]), rows, public)
    assert observed == pytest.approx(tested.eta, rel=1e-9)
    assert tested.eta == pytest.approx(2 * 1.0 / (SIZE * 1.1))


@pytest.mark.parametrize("size", SIZES)
def test_replace_one_attains_twice_the_add_remove_range(size):
    tested, public = mechanism("replace-one"), np.zeros(VOCABULARY)
    rows = batch(np.random.default_rng(0), public, size)
    before, after = np.vstack([rows, extreme([3])]), np.vstack([rows, extreme([8])])
    observed = likelihood_range(tested, before, after, public)
    assert observed == pytest.approx(tested.eta, rel=1e-9)
    assert tested.eta == pytest.approx(2 * mechanism("add-remove").eta)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4 * SIZE))
def test_numerical_batch_variance_stays_within_the_slack(seed, size):
    # A neighbour also moves every other row's logits by up to the slack.
    slack = 0.05
    generator = np.random.default_rng(seed)
    tested, public = mechanism("add-remove", logit_slack=slack), public_law(generator)
    rows = public + generator.normal(0, 1, (size, VOCABULARY))
    moved = rows + slack * generator.choice([-1.0, 1.0], rows.shape)
    observed = likelihood_range(tested, np.vstack([rows, extreme([3])]), moved, public)
    assert observed <= tested.eta * (1 + 1e-9)


# Planted bugs


def test_support_from_private_logits_is_caught():
    # A record decides which tokens exist at all: the ratio is infinite.
    tested, public = mechanism("add-remove", top_k=2), np.zeros(VOCABULARY)
    rows = [public + np.arange(VOCABULARY) / 10, extreme([3])]

    def law(rows):
        private_mean = torch.as_tensor(np.mean(rows, axis=0))
        tokens = torch.nonzero(public_support(private_mean, 2, 0.0)).squeeze(1)
        return log_probabilities(tested, rows, public, tokens=tokens)

    assert spread(law(rows), law(rows[:1])) == np.inf


def test_clipping_the_mean_instead_of_each_difference_is_caught():
    # One record then moves the mean from bound to bound: s times what is charged.
    tested, public = mechanism("add-remove"), np.zeros(VOCABULARY)

    def law(rows):
        mean = np.sum(rows - public, axis=0) / SIZE
        scores = (public + np.clip(mean, -1.0, 1.0)) / tested.temperature
        return scores - np.logaddexp.reduce(scores)

    observed = spread(law(np.array([extreme([3])])), law(np.zeros((1, VOCABULARY))))
    assert observed == pytest.approx(SIZE * tested.eta, rel=1e-9)


def test_centring_on_a_private_maximum_is_caught():
    # Differences centred by the largest logit of the batch let one record move all the others.
    tested = mechanism("add-remove")
    generator = np.random.default_rng(0)
    public = np.zeros(VOCABULARY)
    rows = generator.normal(0, 0.4, (SIZE, VOCABULARY)) * np.linspace(0, 1, VOCABULARY)

    def law(rows):
        private_maximum = rows.max()
        differences = np.clip(rows + 1.0 - private_maximum - public, -1.0, 1.0)
        scores = (public + differences.sum(axis=0) / SIZE) / tested.temperature
        return scores - np.logaddexp.reduce(scores)

    assert spread(law(np.vstack([rows, extreme([3])])), law(rows)) > 1.5 * tested.eta


def test_public_logits_that_saw_private_rows_are_caught():
    # Rounding from a forward pass shared with records is enough to change the support.
    tested = mechanism("add-remove", top_k=1)
    public = np.zeros(VOCABULARY)
    public[1] = -tested.support_margin
    disturbed = public.copy()
    disturbed[1] -= 1e-9
    laws = (log_probabilities(tested, [extreme([3])], row) for row in (public, disturbed))
    assert spread(*laws) == np.inf


def test_add_remove_eta_is_caught_when_used_for_replace_one():
    public = np.zeros(VOCABULARY)
    observed = likelihood_range(mechanism("add-remove"), [extreme([3])], [extreme([8])], public)
    assert observed > 1.9 * mechanism("add-remove").eta
    replaced = mechanism("add-remove", contexts_changed="replace")
    assert observed <= replaced.eta * (1 + 1e-9)
