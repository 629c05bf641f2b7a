"""Exact white-box audit of the softmax mechanisms: no statistics, every likelihood is computed.

One table of laws over the mean of clipped logits and the mean of clipped differences.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism, public_support
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets_tests.privacy.batched import batched

VOCABULARY, SIZE = 40, 8
ACTIVE = np.array([0])
FLAT = np.zeros(VOCABULARY)
KINDS = {
    MeanTokenMechanism: {"clip_bound": 9.0, "temperature": 1.5},
    DifferenceTokenMechanism: {"clip_bound": 1.0, "temperature": 1.1},
}
BOTH = pytest.mark.parametrize("kind", KINDS)


def mechanism(kind, relation="add-remove", records=1, **changes):
    fields = {
        "expected_batch_size": SIZE,
        "relation": NeighboringRelation(relation),
        "max_records_per_unit": records,
    }
    return batched(kind, **(fields | KINDS[kind] | changes))


def log_probabilities(tested, rows, public=FLAT, tokens=None):
    """(V,) log-probabilities of the next token, −inf where none can be drawn."""
    rows = torch.as_tensor(np.asarray(rows), dtype=torch.float64).reshape(-1, VOCABULARY)
    if isinstance(tested, MeanTokenMechanism):
        owners = torch.zeros(len(rows), dtype=torch.int64)
        return torch.log_softmax(tested.private_scores(rows, owners, ACTIVE)[0], 0).numpy()
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
    return np.ptp(before[possible] - after[possible])


def likelihood_range(tested, before, after, public=FLAT):
    return spread(*(log_probabilities(tested, rows, public) for rows in (before, after)))


def extreme(positions):
    row = np.full(VOCABULARY, -50.0)
    row[positions] = 50.0
    return row


def batch(generator, public, size):
    """Adversarial records, broken ones, or records whose prompt is near the public prompt."""

    def record():
        kind = generator.random()
        if kind < 0.1:
            return np.full(VOCABULARY, generator.choice([np.nan, np.inf, -np.inf]))
        if kind < 0.5:
            return extreme(generator.random(VOCABULARY) < generator.random())
        return public + generator.normal(0, 3) + generator.normal(0, 1, VOCABULARY)

    return np.array([record() for _ in range(size)]).reshape(-1, VOCABULARY)


def ordinary(size):
    generator = np.random.default_rng(0)
    return generator.normal(0, 5, VOCABULARY) + generator.normal(0, 3, (size, VOCABULARY))


@BOTH
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 2, SIZE, 200]),
    st.sampled_from(NeighboringRelation),
    st.integers(1, 3),
    st.sampled_from([None, 1, 5]),
)
def test_log_likelihood_ratio_ranges_over_at_most_eta(kind, seed, size, relation, records, top_k):
    generator = np.random.default_rng(seed)
    public = generator.normal(0, generator.choice([0.0, 2.0, 9.0]), VOCABULARY)
    restricted = {"top_k": top_k} if kind is DifferenceTokenMechanism else {}
    tested = mechanism(kind, relation, records, **restricted)
    rows = batch(generator, public, size)
    before = np.vstack([rows, batch(generator, public, records)])
    replaced = [batch(generator, public, records)] if relation == "replace-one" else []
    after = np.vstack([rows, *replaced])
    assert likelihood_range(tested, before, after, public) <= tested.eta * (1 + 1e-9)


@BOTH
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4 * SIZE))
def test_numerical_batch_variance_stays_within_the_slack(kind, seed, size):
    # A neighbour also moves every other row's logits by up to the slack.
    slack, generator = 0.05, np.random.default_rng(seed)
    tested, rows = mechanism(kind, logit_slack=slack), ordinary(size)
    moved = rows + slack * generator.choice([-1.0, 1.0], rows.shape)
    observed = likelihood_range(tested, np.vstack([rows, extreme([3])]), moved)
    assert observed <= tested.eta * (1 + 1e-9)


# Planted bugs of differences


def test_support_from_private_logits_is_caught():
    # A record decides which tokens exist at all: the ratio is infinite.
    tested = mechanism(DifferenceTokenMechanism, top_k=2)
    rows = [np.arange(VOCABULARY) / 10, extreme([3])]

    def law(rows):
        private_mean = torch.as_tensor(np.mean(rows, axis=0))
        tokens = torch.nonzero(public_support(private_mean, 2, 0.0)).squeeze(1)
        return log_probabilities(tested, rows, tokens=tokens)

    assert spread(law(rows), law(rows[:1])) == np.inf


def test_public_logits_that_saw_private_rows_are_caught():
    # Rounding from a forward pass shared with records is enough to change the support.
    tested = mechanism(DifferenceTokenMechanism, top_k=1)
    public = FLAT.copy()
    public[1] = -tested.support_margin
    disturbed = public.copy()
    disturbed[1] -= 1e-9
    laws = (log_probabilities(tested, [extreme([3])], row) for row in (public, disturbed))
    assert spread(*laws) == np.inf
