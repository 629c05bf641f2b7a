"""Laws of sampling and noise for secrets."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_noise import (
    SecretSampling,
    dominating_distribution,
    joint_factor,
    sampling_probabilities,
    secret_count_distributions,
    secret_noise_std,
    secret_weights,
    shift_event,
)
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    poisson_binomial,
    posterior_of_events,
)

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
PRIOR = 1e-4
CERTAIN = np.array([0.0, 1.0])


# ----------------------------------------------------------------------------- linear program


def test_the_program_samples_as_much_as_capacities_allow():
    # Records 0 and 1 share secret 0, records 1 and 2 secret 1, record 3 holds none.
    weights = secret_weights([np.array([0, 1]), np.array([1, 2])], [0.8, 0.6], 4)
    assert weights == pytest.approx([0.8, 0.0, 0.6, 1.0], abs=1e-9)
    assert sampling_probabilities(np.array([0.4, 0.2, 0.0, 0.2])).tolist() == [1.0, 0.5, 0.0, 0.5]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_no_capacity_is_exceeded(data):
    records = [
        np.array(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True)))
        for _ in range(3)
    ]
    capacities = data.draw(st.lists(st.floats(0.01, 3), min_size=3, max_size=3))
    weights = secret_weights(records, capacities, 8)
    assert ((weights >= 0) & (weights <= 1)).all()
    for indices, capacity in zip(records, capacities, strict=True):
        assert weights[indices].sum() <= capacity * (1 + 1e-6)


def test_without_secrets_everybody_is_sampled():
    assert secret_weights([], [], 3).tolist() == [1, 1, 1]


# ------------------------------------------------------------------------------------ shifts


def test_counts_and_sums_are_paid_for_together():
    assert joint_factor(ADD_REMOVE) == joint_factor(ZERO_OUT) == pytest.approx(math.sqrt(2))
    assert joint_factor(ADD_REMOVE) ** 2 > 2
    assert joint_factor(REPLACE_ONE) == 2.0


def test_removed_records_move_the_release_by_the_number_sampled():
    event = shift_event(count_probabilities=np.array([0.7, 0.2, 0.1]), noise_std=3.0, steps=5)
    assert event.shifts == pytest.approx((0, math.sqrt(2), 2 * math.sqrt(2)))
    assert event.probabilities == (0.7, 0.2, 0.1)
    assert (event.noise_std, event.steps) == (3.0, 5)


def test_replaced_records_move_it_as_if_all_were_sampled():
    event = shift_event(
        count_probabilities=np.array([0.7, 0.2, 0.1]), noise_std=3.0, steps=5, relation=REPLACE_ONE
    )
    assert (event.shifts, event.probabilities) == ((4.0,), (1.0,))


# -------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("steps", [1, 2])
def test_noise_is_the_smallest_that_meets_the_posterior(steps):
    distribution = poisson_binomial(np.full(3, 0.3))

    def attained(noise_std):
        event = shift_event(count_probabilities=distribution, noise_std=noise_std, steps=steps)
        return posterior_of_events([event], PRIOR)

    found = secret_noise_std(count_probabilities=distribution, bounds=[(PRIOR, 1e-3)], steps=steps)
    assert attained(found) <= 1e-3 < attained(found * (1 - 2e-3))


def test_nearly_certain_records_meet_the_posterior_too():
    distribution = np.array([1e-12, 1 - 1e-12])
    found = secret_noise_std(count_probabilities=distribution, bounds=[(PRIOR, 1e-3)], steps=2)
    event = shift_event(count_probabilities=distribution, noise_std=found, steps=2)
    assert posterior_of_events([event], PRIOR) <= 1e-3


def test_replacement_needs_twice_the_distance_of_a_certain_record():
    settings = {"count_probabilities": CERTAIN, "bounds": [(PRIOR, 1e-3)], "steps": 1}
    replaced = secret_noise_std(**settings, relation=REPLACE_ONE)
    assert replaced == pytest.approx(2 / gaussian_budget(PRIOR, 1e-3), rel=1e-5)


def test_rarely_sampled_secrets_still_get_the_floor():
    rarely = {"count_probabilities": np.array([1 - 1e-4, 1e-4]), "bounds": [(PRIOR, 1e-3)]}
    assert secret_noise_std(**rarely, steps=1) == 1.0
    assert secret_noise_std(**rarely, steps=1, noise_floor=1e-3) == 1e-3
    event = shift_event(count_probabilities=rarely["count_probabilities"], noise_std=1e-3, steps=1)
    # Without a floor the bound is met by publishing the secret once in ten thousand runs.
    assert posterior_of_events([event], PRIOR) == pytest.approx(2e-4, rel=1e-3)


# ----------------------------------------------------------------------------------- sampling


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=4))
def test_one_law_covers_all_secrets(coins):
    distributions = [poisson_binomial(chances) for chances in coins]
    covering = dominating_distribution(distributions)
    assert covering.sum() == pytest.approx(1.0, abs=1e-12)
    assert (covering >= 0).all()
    for distribution in distributions:
        exceeded = covering[::-1].cumsum()[::-1][: len(distribution)]
        assert (exceeded >= distribution[::-1].cumsum()[::-1] - 1e-12).all()
        settings = {"noise_std": 2.0, "steps": 1}
        own = posterior_of_events([shift_event(count_probabilities=distribution, **settings)], 0.01)
        assert own <= posterior_of_events(
            [shift_event(count_probabilities=covering, **settings)], 0.01
        ) * (1 + 1e-9)


def test_a_capped_secret_is_sampled_binomially():
    sampling = SecretSampling.capped(probability=0.2, max_occurrences=4)
    assert sampling.probabilities == 0.2
    expected = stats.binom.pmf(np.arange(5), 4, 0.2)
    assert sampling.count_probabilities == pytest.approx(expected)


def test_public_incidence_covers_the_most_exposed_secret():
    chances = np.array([0.5, 0.1, 0.9])
    sampling = SecretSampling.from_public_incidence(chances, [np.array([0, 1]), np.array([2])])
    assert sampling.count_probabilities == pytest.approx([0.1, 0.85, 0.05])
    assert "0.9" not in repr(sampling)


# ----------------------------------------------------------------------- several kinds of secrets

BOUNDS = [(1e-4, 1e-3), (1e-2, 5e-2), (0.1, 0.5)]
LAW = poisson_binomial([0.5, 0.3, 0.2])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("bounds", [BOUNDS, BOUNDS[::-1]])
def test_every_bound_holds_and_one_is_tight(steps, bounds):
    settings = {"count_probabilities": LAW, "steps": steps}
    noise_std = secret_noise_std(**settings, bounds=bounds, noise_floor=1e-3)
    event = shift_event(**settings, noise_std=noise_std)
    shares = [posterior_of_events([event], p) / r for p, r in BOUNDS]
    assert max(shares) <= 1.0
    assert max(shares) == pytest.approx(1.0, rel=5e-3)


def test_records_that_are_never_sampled_do_not_lengthen_a_law():
    chances = np.array([0.0, 0.5, 0.0, 1.0])
    (distribution,) = secret_count_distributions(chances, [np.arange(4)])
    assert distribution == pytest.approx([0.0, 0.5, 0.5])
