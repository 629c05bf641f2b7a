import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import integer_noise_std
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import DiscreteGaussianEvent, flatten
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.histogram import (
    NO_VOTE,
    GaussianVoting,
    count_votes,
    l2_sensitivity,
)

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation


def largest_move(mechanism):
    """How far one unit moves a round's votes at most."""
    votes = mechanism.votes_per_record * mechanism.max_records_per_unit
    return l2_sensitivity(mechanism.relation, votes)


def voting(noise_std=8.0, iterations=3, votes=1, relation=ADD_REMOVE, records=1):
    return GaussianVoting(
        noise_std=noise_std,
        iterations=iterations,
        votes_per_record=votes,
        relation=relation,
        max_records_per_unit=records,
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

    class Unread:
        def __array__(self, *_):
            raise AssertionError("private votes were read")

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


@pytest.mark.parametrize(
    "settings",
    [
        {"noise_std": 0.5},
        {"noise_std": math.inf},
        {"iterations": 0},
        {"votes": 0},
        {"records": 0},
        {"relation": "some"},
    ],
)
def test_settings_outside_their_domain_are_refused(settings):
    with pytest.raises(ValueError, match=r"Expected|is not a valid"):
        voting(**settings)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_mechanism_cannot_be_copied_to_release_more(duplicate):
    with pytest.raises(TypeError, match="copy"):
        duplicate(voting())


def test_rounds_that_a_killed_run_stored_are_not_released_again():
    mechanism = GaussianVoting(
        noise_std=8.0, iterations=3, votes_per_record=1, relation=ADD_REMOVE, released_before=2
    )
    assert mechanism.event() == voting(iterations=3).event()  # all three stay charged
    assert mechanism.remaining == 1
    mechanism.release(np.zeros(2, dtype=np.int64))
    with pytest.raises(UnaccountedReleaseError):
        mechanism.release(np.zeros(2, dtype=np.int64))
    for stored in (-1, 4):
        with pytest.raises(ValueError, match="released_before"):
            GaussianVoting(
                noise_std=8.0,
                iterations=3,
                votes_per_record=1,
                relation=ADD_REMOVE,
                released_before=stored,
            )


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


def test_integer_noise_is_never_below_one_vote():
    target = {"target_epsilon": 1e4, "delta": 1e-6, "accountant": "tight"}
    noise_std = integer_noise_std(lambda std: [voting(std, iterations=1).event()], **target)
    assert noise_std == 1.0


@pytest.mark.parametrize(
    ("records", "noise_std", "epsilon"),
    [
        (1939290, 15.34, 1.004455),
        (8396, 3.38, 3.992231),
    ],
)
def test_ten_rounds_cost_what_the_papers_notebook_prints(records, noise_std, epsilon):
    delta = 1 / (records * math.log(records))
    assert gaussian_epsilon(math.sqrt(10) / noise_std, delta) == pytest.approx(epsilon, abs=2e-6)
    # The notebook prices whole votes as continuous noise: up to 4e-4 too little.
    whole = epsilon_of([voting(noise_std, 10).event()], delta, "tight")
    assert whole == pytest.approx(epsilon, rel=5e-4)


def test_noise_cannot_be_lowered_after_the_price_was_named():
    with pytest.raises(AttributeError):
        voting().noise_std = 1.0
