"""Laws of noisy histograms and of rounds of votes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import integer_noise_std
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import DiscreteGaussianEvent, DiscreteLaplaceEvent, flatten
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.histogram import (
    NO_VOTE,
    GaussianVoting,
    NoisyHistogram,
    count_votes,
    l1_sensitivity,
    l2_sensitivity,
    scale_for,
)
from dpsynth_assets_tests.privacy.batched import Unread

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation


@given(
    st.lists(st.integers(0, 4), max_size=8),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.sampled_from(NeighboringRelation),
)
def test_counts_of_neighbours_differ_by_at_most_the_sensitivity(rest, unit, relation):
    # The unit's records sit in bins a; the neighbour drops them or moves them to bins b.
    before = np.bincount([*rest, *(a for a, _ in unit)], minlength=5)
    moved = [b for _, b in unit] if relation is REPLACE_ONE else []
    after = np.bincount(np.array([*rest, *moved], dtype=int), minlength=5)
    change = np.abs(before - after)
    assert change.sum() <= l1_sensitivity(relation, len(unit))
    assert np.linalg.norm(change) <= l2_sensitivity(relation, len(unit))


@pytest.mark.parametrize(
    ("relation", "l1", "l2"),
    [(ADD_REMOVE, 1, 1.0), (ZERO_OUT, 1, 1.0), (REPLACE_ONE, 2, math.sqrt(2))],
)
def test_events_state_noise_relative_to_the_sensitivity(relation, l1, l2):
    for records in (1, 3):
        arguments = {"scale": 10.0, "relation": relation, "max_records_per_unit": records}
        laplace = NoisyHistogram(noise="laplace", **arguments).event()
        assert laplace == DiscreteLaplaceEvent(scale=10.0, sensitivity=l1 * records)
        gaussian = NoisyHistogram(noise="gaussian", **arguments).event()
        assert gaussian == DiscreteGaussianEvent(noise_std=10.0, shift=records, count=l1)
        assert float(gaussian.rho) == pytest.approx((l2 * records) ** 2 / 200)


def test_release_carries_its_cost_and_every_bin():
    release = NoisyHistogram(noise="laplace", scale=2.0, relation=ADD_REMOVE).release([5, 0, 7])
    assert release.value.shape == (3,)
    assert release.value.dtype == np.int64
    assert release.cost.guarantee is GuaranteeType.DP
    assert release.cost.event == DiscreteLaplaceEvent(scale=2.0)


@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "variance"), [("laplace", 2 * 10.0**2), ("gaussian", 10.0**2)])
def test_the_noise_has_the_scale_that_is_priced(noise, variance):
    bins = np.full(40_000, 7)
    mechanism = NoisyHistogram(noise=noise, scale=10.0, relation=REPLACE_ONE)
    drawn = mechanism.release(bins).value - bins
    # Five standard errors of a Laplace variable's variance, sqrt(5 / 40,000), are 5.6 %.
    assert drawn.var() == pytest.approx(variance, rel=0.06)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_large_counts_do_not_saturate(noise):
    count = 10**12
    release = NoisyHistogram(noise=noise, scale=5.0, relation=ADD_REMOVE).release([count])
    assert abs(int(release.value[0]) - count) < 1000


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_laplace_scale_meets_the_pure_epsilon(relation):
    scale = scale_for(NoisyHistogram(noise="laplace", scale=1.0, relation=relation), 0.1, 1e-6)
    event = NoisyHistogram(noise="laplace", scale=scale, relation=relation).event()
    assert isinstance(event, DiscreteLaplaceEvent)
    assert 0.1 * (1 - 1e-9) <= event.epsilon <= 0.1


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_gaussian_scale_is_the_smallest_that_meets_epsilon(accountant):
    histogram = NoisyHistogram(noise="gaussian", scale=1.0, relation=REPLACE_ONE)
    scale = scale_for(histogram, 0.5, 1e-6, accountant)

    def epsilon(value):
        event = NoisyHistogram(noise="gaussian", scale=value, relation=REPLACE_ONE).event()
        return epsilon_of([event], 1e-6, accountant)

    assert epsilon(scale) <= 0.5 < epsilon(scale * 0.999)


def test_fractional_counts_are_refused_without_showing_them():
    with pytest.raises(ValueError, match="whole counts") as refusal:
        NoisyHistogram(noise="laplace", scale=1.0, relation=ADD_REMOVE).release([1234.5])
    assert "1234" not in str(refusal.value)


# Votes


def largest_move(mechanism):
    """How far one unit moves a round's votes at most."""
    votes = mechanism.votes_per_record * mechanism.max_records_per_unit
    return l2_sensitivity(mechanism.relation, votes)


def voting(noise_std=8.0, iterations=3, votes=1, relation=ADD_REMOVE, records=1, **more):
    return GaussianVoting(
        noise_std=noise_std,
        iterations=iterations,
        votes_per_record=votes,
        relation=relation,
        max_records_per_unit=records,
        **more,
    )


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(NeighboringRelation),
    st.data(),
)
def test_votes_of_neighbours_differ_by_at_most_the_sensitivity(votes, records, relation, data):
    ballots = st.lists(
        st.lists(st.integers(NO_VOTE, 3), min_size=votes, max_size=votes),
        min_size=records,
        max_size=records,
    )
    others, unit = data.draw(ballots), data.draw(ballots)
    instead = data.draw(ballots) if relation is REPLACE_ONE else []
    mechanism = voting(votes=votes, relation=relation, records=records)
    with_unit = count_votes(np.array(others + unit), 4, votes)
    without = count_votes(np.array(others + instead), 4, votes)
    assert np.linalg.norm(with_unit - without) <= largest_move(mechanism)


@pytest.mark.parametrize(
    ("relation", "distance"), [(ADD_REMOVE, 6.0), (ZERO_OUT, 6.0), (REPLACE_ONE, 6 * math.sqrt(2))]
)
def test_the_sensitivity_is_attained_when_a_unit_votes_for_one_candidate(relation, distance):
    mechanism = voting(votes=3, relation=relation, records=2)
    with_unit = count_votes(np.zeros((2, 3), dtype=int), 2, 3)
    moved = 1 if relation is REPLACE_ONE else NO_VOTE
    without = count_votes(np.full((2, 3), moved), 2, 3)
    assert np.linalg.norm(with_unit - without) == pytest.approx(distance)
    assert largest_move(mechanism) == pytest.approx(distance)
    assert largest_move(mechanism) >= distance
    counts = 2 if relation is REPLACE_ONE else 1
    assert mechanism.histogram.event() == DiscreteGaussianEvent(
        noise_std=8.0, shift=6, count=counts
    )
    assert float(mechanism.histogram.event().rho) == pytest.approx(distance**2 / 128)


def test_every_round_is_charged_and_no_other_is_released():
    mechanism = voting(iterations=3)
    assert flatten(mechanism.event()) == [mechanism.histogram.event()] * 3
    for released in range(3):
        assert mechanism.remaining == 3 - released
        release = mechanism.release(np.zeros(5, dtype=np.int64))
        assert release.cost.guarantee is GuaranteeType.DP
        assert release.cost.event == mechanism.histogram.event()
        assert release.value.shape == (5,)
    with pytest.raises(UnaccountedReleaseError, match="at most 3 rounds"):
        mechanism.release(Unread())


def test_abstaining_and_repeated_votes_are_counted():
    choices = np.array([[2, 2], [0, NO_VOTE], [NO_VOTE, NO_VOTE]])
    assert count_votes(choices, 4, 2).tolist() == [1, 0, 2, 0]
    assert count_votes(np.empty((0, 2), dtype=int), 3, 2).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "choices", [np.zeros((4, 3), int), np.zeros(4, int), np.zeros((4, 2)), [[0, 4177]], [[-5, 0]]]
)
def test_choices_beyond_what_was_declared_are_refused_without_showing_them(choices):
    with pytest.raises(ValueError, match="Expected") as refusal:
        count_votes(np.asarray(choices), 4, 2)
    assert "4177" not in str(refusal.value)


def test_rounds_that_a_killed_run_stored_are_not_released_again():
    mechanism = voting(released_before=2)
    assert mechanism.event() == voting(iterations=3).event()  # all three stay charged
    assert mechanism.remaining == 1
    mechanism.release(np.zeros(2, dtype=np.int64))
    with pytest.raises(UnaccountedReleaseError):
        mechanism.release(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("accountant", ["tight", "zcdp"])
@pytest.mark.parametrize(
    ("iterations", "votes", "records", "relation"),
    [(1, 1, 1, ADD_REMOVE), (10, 1, 1, REPLACE_ONE), (5, 3, 2, ZERO_OUT)],
)
def test_calibrated_noise_spends_the_target_and_no_more(
    accountant, iterations, votes, records, relation
):
    def events(noise_std):
        return [voting(noise_std, iterations, votes, relation, records).event()]

    noise_std = integer_noise_std(events, target_epsilon=1.0, delta=1e-6, accountant=accountant)
    (event,) = events(noise_std)
    # The cost of whole votes wavers by 1e-5 as losses move past ε: "no more" holds always.
    least = 1e-4 if accountant == "tight" else 1e-9
    assert 1.0 - least < epsilon_of([event], 1e-6, accountant) <= 1.0


def test_noise_cannot_be_lowered_after_the_price_was_named():
    with pytest.raises(AttributeError):
        voting().noise_std = 1.0


def test_integer_noise_is_never_below_one_vote():
    target = {"target_epsilon": 1e4, "delta": 1e-6, "accountant": "tight"}
    assert integer_noise_std(lambda std: [voting(std, iterations=1).event()], **target) == 1.0
