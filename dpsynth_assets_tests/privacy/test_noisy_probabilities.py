"""Laws of noisy mean probabilities over fresh samples.

Statistical tests have a false-alarm probability of at most 1e-6 each.
"""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy import noisy_probabilities
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.noisy_probabilities import (
    NoisyProbabilities,
    mean_probability_sensitivity,
    noisy_probabilities_event,
    private_mean_probabilities,
    split_sample,
)

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
VOCABULARY = 6
FALSE_ALARM = 1e-6


def mechanism(**changes):
    settings = {
        "subsets": 3,
        "examples_per_subset": 2,
        "sampling_probability": 0.5,
        "noise_multiplier": 1.0,
        "steps": 4,
        "top_k": 4,
        "relation": ADD_REMOVE,
    }
    return NoisyProbabilities(**(settings | changes))


def event(relation=ADD_REMOVE, **changes):
    settings = {"sampling_probability": 0.1, "noise_multiplier": 1.5, "steps": 50}
    return noisy_probabilities_event(relation=relation, **(settings | changes))


ROWS = {
    "one token": lambda draw: 80.0 * np.eye(VOCABULARY)[draw.integers(VOCABULARY)],
    "any": lambda draw: draw.normal(0, 5, VOCABULARY),
    "NaN": lambda draw: np.full(VOCABULARY, np.nan),
    "an infinity": lambda draw: np.where(np.arange(VOCABULARY) == 1, np.inf, 0.0),
    "all excluded": lambda draw: np.full(VOCABULARY, -np.inf),
    "some excluded": lambda draw: np.where(np.arange(VOCABULARY) < 3, -np.inf, 1.0),
}


def mean_of(rows):
    return private_mean_probabilities(torch.tensor(rows), torch.arange(VOCABULARY)).numpy()


# Sensitivity


@settings(deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 6), st.lists(st.sampled_from(sorted(ROWS)), min_size=2)
)
def test_changed_subsets_move_the_mean_by_at_most_one_sensitivity_each(seed, subsets, kinds):
    draw = np.random.default_rng(seed)
    rows = np.array([ROWS["any"](draw) for _ in range(subsets)])
    changed = rows.copy()
    others = rows.copy()
    touched = sorted({int(draw.integers(subsets)) for _ in kinds})
    for place in touched:
        changed[place] = ROWS[kinds[0]](draw)
        others[place] = ROWS[kinds[1]](draw)
    moved = np.linalg.norm(mean_of(changed) - mean_of(others))
    assert moved <= len(touched) * mean_probability_sensitivity(subsets)


@pytest.mark.parametrize("subsets", [1, 3, 80])
def test_one_subset_of_certain_and_opposite_opinion_attains_the_sensitivity(subsets):
    rows = 800.0 * np.eye(VOCABULARY)[np.arange(subsets) % 3]
    other = rows.copy()
    other[0] = 800.0 * np.eye(VOCABULARY)[5]
    moved = np.linalg.norm(mean_of(rows) - mean_of(other))
    bound = mean_probability_sensitivity(subsets)
    assert moved == pytest.approx(math.sqrt(2) / subsets)
    assert moved <= bound <= moved * (1 + 1e-12)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([1e-4, 0.05, 0.25, 3.0]))
def test_rounding_in_other_subsets_stays_within_the_slack(seed, subsets, slack):
    draw = np.random.default_rng(seed)
    rows = draw.normal(0, 2, (subsets, VOCABULARY))
    moved = rows + slack * draw.choice([-1.0, 1.0], rows.shape)
    rows[0], moved[0] = 800.0 * np.eye(VOCABULARY)[0], 800.0 * np.eye(VOCABULARY)[1]
    distance = np.linalg.norm(mean_of(rows) - mean_of(moved))
    assert distance <= mean_probability_sensitivity(subsets, slack)


# Subsets


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_a_sampled_record_changes_the_subset_that_owns_it_and_no_other(subsets, examples, data):
    size = data.draw(st.integers(1, 12))
    owners = np.array(
        data.draw(st.lists(st.integers(0, subsets - 1), min_size=size, max_size=size))
    )
    key = st.integers(0, 2**53 - 1).map(lambda bits: (bits + 0.5) * 2.0**-53)
    keys = np.array(data.draw(st.lists(key, min_size=size, max_size=size)))
    extra = data.draw(st.integers(0, size - 1))
    split = {"subsets": subsets, "examples": examples}
    with_record = split_sample(np.arange(size), owners, keys, **split)
    rest = np.delete(np.arange(size), extra)
    without = split_sample(rest, owners[rest], keys[rest], **split)
    for subset in range(subsets):
        if subset != owners[extra]:
            assert with_record[subset].tolist() == without[subset].tolist()
        assert extra not in without[subset]
        assert len(with_record[subset]) <= examples
        assert (owners[with_record[subset]] == subset).all()


def test_subsets_are_disjoint_and_hold_the_sample_where_nothing_is_cut():
    drawn = mechanism(sampling_probability=1.0, examples_per_subset=50).draw(40)
    assert sorted(np.concatenate(drawn).tolist()) == list(range(40))


def test_a_label_without_records_has_empty_subsets():
    assert [subset.tolist() for subset in mechanism().draw(0)] == [[], [], []]


@pytest.mark.statistical
def test_every_record_is_sampled_into_every_subset_alike():
    records, steps = 50, 400
    tested = mechanism(steps=steps, sampling_probability=0.3, examples_per_subset=50)
    counts = np.zeros((3, records))
    for _ in range(steps):
        for subset, members in enumerate(tested.draw(records)):
            counts[subset, members] += 1
    level = FALSE_ALARM / counts.size / 2
    low, high = stats.binom.ppf([level, 1 - level], steps, 0.1)
    assert ((counts >= low) & (counts <= high)).all()


@pytest.mark.statistical
def test_which_records_are_cut_is_chance():
    steps = 2000
    tested = mechanism(steps=steps, sampling_probability=1.0, subsets=1, examples_per_subset=1)
    kept = sum(int(tested.draw(2)[0][0]) for _ in range(steps))
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], steps, 0.5)
    assert low <= kept <= high


# Price


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT])
def test_a_record_that_comes_or_goes_is_charged_as_a_sampled_gaussian(relation):
    expected = PoissonGaussianEvent(
        sampling_probability=0.1, noise_multiplier=1.5, steps=50, max_records_per_unit=2
    )
    assert event(relation, max_records_per_unit=2) == expected


@pytest.mark.parametrize("labels", [1, 2], ids=["same label", "another label"])
def test_a_replaced_record_is_charged_for_two_labels_without_amplification(labels):
    tested = mechanism(relation=REPLACE_ONE, noise_multiplier=1.5)
    before, after = (800.0 * np.eye(VOCABULARY)[[token] * 3] for token in (0, 1))
    after[1:] = before[1:]  # one subset of three: its record is replaced, or leaves
    moved = math.sqrt(labels) * np.linalg.norm(mean_of(before) - mean_of(after))
    priced = tested.event()
    assert priced.sampling_probability == 1.0
    assert moved / tested.noise_std <= 1.0 / priced.noise_multiplier
    if labels == 2:
        assert moved / tested.noise_std == pytest.approx(1.0 / priced.noise_multiplier)


@pytest.mark.parametrize(
    ("accountant", "probability"), [("zcdp", 0.02), ("zcdp", 0.4), ("tight", 0.4)]
)
def test_records_of_a_unit_in_two_labels_cost_no_more_than_in_one(accountant, probability):
    spread = [event(sampling_probability=probability)] * 2
    together = event(sampling_probability=probability, max_records_per_unit=2)
    assert epsilon_of(spread, 1e-5, accountant) <= epsilon_of([together], 1e-5, accountant)


@pytest.mark.parametrize(
    ("records", "examples", "steps", "epsilon", "multiplier"),
    [(30_000, 20, 100, 4, 0.39), (1561, 80, 80, 1, 1.52)],
    ids=["AG News", "MIT movies"],
)
def test_published_noise_costs_what_the_paper_claims(records, examples, steps, epsilon, multiplier):
    priced = event(
        sampling_probability=examples / records, noise_multiplier=multiplier, steps=steps
    )
    assert 0.85 * epsilon < epsilon_of([priced], 1 / records, "tight") <= 1.01 * epsilon


def test_the_noise_that_is_added_is_the_noise_that_is_priced(monkeypatch):
    asked = []

    def recorded(values, scale):
        asked.append((values, scale))
        return values

    monkeypatch.setattr(noisy_probabilities, "discrete_gaussian", recorded)
    tested = mechanism(subsets=5, noise_multiplier=3.0, logit_slack=0.1)
    tested.draw(0)
    tested.select(torch.zeros(5, VOCABULARY), torch.zeros(VOCABULARY))
    ((values, scale),) = asked
    step, noise = tested.noise_on_lattice(VOCABULARY)
    assert scale == noise
    assert len(values) == VOCABULARY  # all tie for the fourth place
    assert values == [math.floor(1 / VOCABULARY / step)] * VOCABULARY
    assert tested.noise_std == 3.0 * mean_probability_sensitivity(5, 0.1)
    assert tested.event().noise_multiplier == 3.0


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from([1e-9, 0.3, 1.0, 40.0]),
    st.integers(2, 200),
)
def test_noise_on_the_lattice_covers_floors_and_rounding(seed, subsets, multiplier, tokens):
    # Means of certain and opposite opinion, off by float64 rounding, as far apart in whole steps
    # as noise of the charged multiplier allows.
    draw = np.random.default_rng(seed)
    tested = mechanism(subsets=subsets, noise_multiplier=multiplier)
    step, noise = tested.noise_on_lattice(tokens)
    assert math.frexp(step)[0] == 0.5
    rows = draw.normal(0, 2, (subsets, tokens))
    other = rows.copy()
    rows[0], other[0] = 800.0 * np.eye(tokens)[0], 800.0 * np.eye(tokens)[1]
    means = [
        private_mean_probabilities(torch.tensor(each), torch.arange(tokens)).numpy()
        + 2.0**-52 * draw.choice([-1, 1], tokens)
        for each in (rows, other)
    ]
    before, after = (np.floor(mean / step) for mean in means)
    assert np.linalg.norm(before - after) / math.sqrt(noise**2 - 3.0) <= 1.0 / multiplier
    if multiplier >= 0.3:
        assert 1.0 <= noise * step / tested.noise_std <= 1.0 + 2e-6  # More noise, never less.


def test_numbers_on_the_lattice_fit_into_64_bits():
    for multiplier in (1e-15, 1.0, 1e12):
        step, noise = mechanism(noise_multiplier=multiplier).noise_on_lattice(1_000_000)
        assert 1.0 / step + 40.0 * noise < 2.0**63


# Tokens


def select_once(tested, private, public):
    tested.draw(0)
    return tested.select(torch.as_tensor(private), torch.as_tensor(public))


def test_without_noise_to_speak_of_the_likeliest_token_on_average_wins():
    draw = np.random.default_rng(1)
    for _ in range(20):
        rows, public = draw.normal(0, 3, (3, VOCABULARY)), draw.normal(0, 1, VOCABULARY)
        support = np.argsort(-public)[:4]
        weights = np.exp(rows[:, support])
        best = support[(weights / weights.sum(axis=1, keepdims=True)).mean(axis=0).argmax()]
        assert select_once(mechanism(noise_multiplier=1e-9), rows, public) == best


def test_no_private_opinion_brings_a_token_into_the_public_support():
    private = np.tile(800.0 * np.eye(VOCABULARY)[5], (3, 1))
    public = np.array([4.0, 3.0, 2.0, 1.0, 0.0, -1.0])
    tested = mechanism(steps=200)
    assert {select_once(tested, private, public) for _ in range(200)} <= {0, 1, 2, 3}


def test_a_support_wider_than_the_vocabulary_is_the_vocabulary():
    private = np.tile(800.0 * np.eye(VOCABULARY)[5], (3, 1))
    public = np.array([4.0, 3.0, 2.0, 1.0, 0.0, -1.0])
    assert select_once(mechanism(top_k=99, noise_multiplier=1e-9), private, public) == 5


@pytest.mark.parametrize("kind", ["NaN", "an infinity", "all excluded"])
def test_a_row_without_a_law_contributes_zeros(kind):
    rows = np.array([ROWS[kind](None), ROWS["one token"](np.random.default_rng(0))])
    assert mean_of(rows).sum() == pytest.approx(0.5)


def test_no_step_is_drawn_beyond_the_plan(monkeypatch):
    tested = mechanism(steps=2)
    for left in (2, 1):
        assert tested.steps_left == left
        tested.draw(5)

    def unread(*_):
        raise AssertionError("a coin was tossed")

    monkeypatch.setattr(noisy_probabilities, "poisson_sample", unread)
    with pytest.raises(UnaccountedReleaseError, match="at most the planned steps"):
        tested.draw(5)


def test_one_sample_gives_one_token():
    tested = mechanism()
    logits = torch.zeros(3, VOCABULARY)
    with pytest.raises(UnaccountedReleaseError):
        tested.select(logits, logits[0])
    tested.draw(1)
    tested.select(logits, logits[0])
    with pytest.raises(UnaccountedReleaseError):
        tested.select(logits, logits[0])


@pytest.mark.parametrize(
    ("private", "public"),
    [
        (torch.full((2, 6), 4177.0), torch.zeros(6)),  # the empty subset left out
        (torch.full((3, 6), 4177.0), torch.zeros(5)),
        (torch.full((3, 6), 4177.0), torch.zeros(1, 6)),
        (torch.full((3, 6), 4177.0), torch.full((6,), torch.nan)),
    ],
)
def test_logits_that_do_not_fit_are_refused_without_showing_them(private, public):
    tested = mechanism()
    tested.draw(1)
    with pytest.raises(ValueError, match="Expected") as refusal:
        tested.select(private, public)
    assert "4177" not in str(refusal.value)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_mechanism_cannot_be_copied_to_draw_more(duplicate):
    with pytest.raises(TypeError, match="copy"):
        duplicate(mechanism())


@pytest.mark.parametrize(
    "changes",
    [
        {"subsets": 0},
        {"examples_per_subset": 0},
        {"top_k": 0},
        {"sampling_probability": 0.0},
        {"sampling_probability": 1.5},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"logit_slack": -1.0},
        {"logit_slack": math.nan},
        {"relation": "some"},
    ],
)
def test_settings_outside_their_domain_are_refused(changes):
    with pytest.raises(ValueError, match=r"Expected|is not a valid"):
        mechanism(**changes)
