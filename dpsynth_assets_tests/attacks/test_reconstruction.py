"""Laws of the reconstruction test: keys by fair chance, a bound that holds, power to see copying.

Simulations check coverage at false alarms of 5%; their own false-alarm probability is 1e-6 each.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from dpsynth_assets.attacks.audits.audit import FALSE_ALARM
from dpsynth_assets.attacks.reconstruction import (
    KEYS,
    NULL_CHANCE,
    PREFIX,
    CopyingModel,
    Rate,
    audit_delta,
    count_overlap,
    describe,
    judge,
    plant_in_places,
    plant_keys,
    prefilled,
    prove,
    read_keys,
)
from dpsynth_assets.models.decoding import sample_documents
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.prompt_templates import DocumentFormat


def allowed_share(chance, epsilon):
    """Largest chance that a written key is a planted one under ε-DP."""
    return 1 / (1 + math.exp(-epsilon) * (1 - chance) / chance)


def test_keys_are_five_digits_distinct_and_as_many_as_asked():
    planted = plant_keys(2000, seed=0)
    assert all(len(key) == 5 and key.isdigit() for key in planted.source)
    assert len(set(planted.source)) == len(planted.source)
    assert len(planted.source) + planted.held_out == KEYS
    assert abs(len(planted.source) - 2000) < 5 * math.sqrt(2000)


@pytest.mark.statistical
def test_every_key_is_planted_with_the_same_chance_by_a_coin_of_its_own():
    counts = np.zeros(KEYS)
    rounds, chance = 60, 0.05
    for seed in range(rounds):
        counts[[int(key) for key in plant_keys(int(KEYS * chance), seed=seed).source]] += 1
    expected = stats.binom.pmf(np.arange(rounds + 1), rounds, chance) * KEYS
    seen = np.bincount(counts.astype(int), minlength=rounds + 1)
    usual = expected > 20
    statistic = ((seen - expected)[usual] ** 2 / expected[usual]).sum()
    assert statistic < stats.chi2.isf(1e-6, usual.sum())


def test_without_a_seed_keys_differ_from_run_to_run():
    assert plant_keys(500).source != plant_keys(500).source


@pytest.mark.parametrize("expected", [0, -1, KEYS // 2 + 1])
def test_numbers_of_keys_and_places_out_of_domain_are_refused(expected):
    with pytest.raises(ValueError, match="Expected 0 < planted keys"):
        plant_keys(expected)
    with pytest.raises(ValueError, match="Expected 0 < places"):
        plant_in_places(expected)


def test_a_place_holds_one_of_its_own_keys_or_a_null_record():
    planted = plant_in_places(96, seed=3)
    assert len(planted.places) == 96
    assert sorted(filter(None, planted.places)) == list(planted.source)
    assert all(int(key) % 96 == place for place, key in enumerate(planted.places) if key)
    assert plant_in_places(96).places != plant_in_places(96).places


@pytest.mark.statistical
def test_places_are_null_and_hold_their_keys_with_the_stated_chances():
    # 33,333 places of three keys, or four: null or any key of their own.
    places = KEYS // 3
    planted = plant_in_places(places, seed=4)
    nulls = places - len(planted.source)
    assert abs(nulls - NULL_CHANCE * places) < 5 * math.sqrt(places) / 2
    rounds = np.bincount([int(key) // places for key in planted.source], minlength=3)[:3]
    expected = planted.expected / 3
    assert ((rounds - expected) ** 2 / expected).sum() < stats.chi2.isf(1e-7, 2)
    assert planted.chance / (1 - planted.chance) == pytest.approx(
        (1 - NULL_CHANCE) / 3 / NULL_CHANCE
    )


def test_planted_keys_are_not_shown_in_a_repr():
    planted = plant_keys(50, seed=1)
    assert planted.source[0] not in repr(planted)


def test_a_key_is_read_from_the_start_of_a_text_alone():
    texts = ["01234", " 56789.", "1234", "x 12345", "٠١٢٣٤", "987654"]
    assert read_keys(texts) == ["01234", "56789", "98765"]


def test_overlap_counts_distinct_keys_by_set():
    planted = plant_keys(100, seed=2)
    ours, known = planted.source[:3], {f"{key:05d}" for key in range(500)}
    others = sorted(known - set(planted.source))[:2]
    overlap = count_overlap(planted, [ours[0], *ours, *others, others[0], "no key"])
    assert (overlap.documents, overlap.with_key) == (8, 7)
    assert (overlap.source.hits, overlap.held_out.hits, overlap.guesses) == (3, 2, 5)
    assert overlap.source.keys == len(planted.source)
    assert "3 of" in describe(overlap)


def test_an_interval_encloses_its_share_and_none_of_nothing_says_nothing():
    low, high = Rate(hits=3, keys=10).interval
    assert low < 0.3 < high
    assert Rate(hits=0, keys=10).interval[0] == 0.0
    assert Rate(hits=0, keys=0).interval == (0.0, 1.0)
    assert Rate(hits=0, keys=0).share == 0.0


# The bound


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("guesses", [5, 40])
def test_a_mechanism_at_its_epsilon_is_refuted_no_more_often_than_stated(epsilon, guesses):
    chance, level = 0.01, 0.05
    right = np.arange(guesses + 1)
    weights = stats.binom.pmf(right, guesses, allowed_share(chance, epsilon))
    refuted = [prove(int(hits), guesses, chance, level) > epsilon + 1e-9 for hits in right]
    assert weights[refuted].sum() <= level


@pytest.mark.statistical
@pytest.mark.parametrize("lists", [1, 4])
def test_a_zero_out_mechanism_that_tells_places_is_refuted_no_more_often_than_stated(lists):
    # For each place it lists keys: with weight e^ε that of the place, or, of a null place, others.
    # It is ε-DP for null neighbours: P(list holds the key) is e^ε times that for a null record.
    epsilon, null, own, places, rounds, level = 1.5, 0.25, 40, 30, 3000, 0.05
    generator = np.random.default_rng(6)
    hit = math.exp(epsilon) * lists / own
    chance = (1 - null) / own / null
    chance /= 1 + chance
    refuted = 0
    for _ in range(rounds):
        present = generator.random(places) >= null
        right = int((present & (generator.random(places) < hit)).sum())
        refuted += prove(right, places * lists, chance, level) > epsilon
    assert hit <= 1
    assert refuted <= stats.binom.isf(1e-6, rounds, level)


@pytest.mark.statistical
def test_one_leak_that_spoils_many_keys_at_once_stays_within_the_bound():
    # A pure ε-DP mechanism whose keys depend on one another: it reports every coin through
    # randomised response, or, by one shared flip, none of them truly.
    epsilon, chance, keys, rounds, level = 1.0, 0.2, 60, 4000, 0.05
    generator = np.random.default_rng(5)
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    refuted = 0
    for _ in range(rounds):
        planted = generator.random(keys) < chance
        answers = generator.random(keys) < keep
        if generator.random() < 0.5:
            answers = generator.random(keys) < 0.5
            planted_seen = generator.random(keys) < 0.5
        else:
            planted_seen = planted
        written = np.where(answers, planted_seen, ~planted_seen)
        right = int((written & planted).sum())
        refuted += prove(right, int(written.sum()), chance, level) > epsilon
    assert refuted <= stats.binom.isf(1e-6, rounds, level)


def test_more_right_keys_prove_more_and_none_prove_nothing():
    proven = [prove(right, 60, 1e-3) for right in range(61)]
    assert proven[0] == 0.0
    assert all(later >= earlier for earlier, later in itertools.pairwise(proven))
    assert proven[-1] > 7
    assert prove(0, 0, 1e-3) == 0.0


def test_right_keys_as_frequent_as_chance_prove_nothing():
    assert prove(50, 100, 0.5) == 0.0
    assert prove(1, 1000, 1e-3) == 0.0


def test_the_delta_of_the_test_spends_half_of_the_false_alarm():
    planted = plant_keys(80, seed=0)
    assert KEYS * planted.chance * audit_delta(planted) == pytest.approx(FALSE_ALARM / 2)


def test_keys_copied_from_places_refute_what_the_place_allows():
    planted = plant_in_places(96, seed=0)
    copied = count_overlap(planted, list(planted.source))
    assert judge(copied, 3.0).observed > 5.0
    assert 96 * (1 - NULL_CHANCE) * audit_delta(planted) == pytest.approx(FALSE_ALARM / 2)
    others = [f"{(int(key) + 96) % KEYS:05d}" for key in planted.source]
    assert judge(count_overlap(planted, others), 0.1).passed


def test_a_finding_fails_where_more_is_proven_than_claimed():
    planted = plant_keys(100, seed=3)
    copied = count_overlap(planted, list(planted.source))
    assert not judge(copied, 5.0).passed
    assert judge(copied, 9.5).passed
    assert judge(count_overlap(planted, []), 0.0).passed


# Models


def test_the_copying_model_repeats_its_prompt_and_little_else():
    model = CopyingModel()
    planted = plant_keys(80, seed=4)
    sampled = sample_documents(
        model.model,
        model,
        [model.prompt_ids("", [key], 5) for key in planted.source],
        Sampling(max_new_tokens=5),
    )
    overlap = count_overlap(planted, [model.decode(document) for document in sampled])
    assert overlap.source.share > 0.8
    assert overlap.proven_epsilon > 6


def test_the_copying_model_reads_back_what_it_writes():
    model = CopyingModel()
    assert model.decode(model.encode("50517")) == "50517"
    assert model.decode([model.end_token_id, *model.encode("a1-2")]) == "12"


def test_a_prefilled_prompt_ends_where_a_key_begins_and_leaves_the_rest_alone():
    inner = SimpleNamespace(
        begin_token_id=None,
        end_token_id="|",
        name="inner",
        encode=list,
        document_format=DocumentFormat("{label}: ", "", None, "\n"),
    )
    model = prefilled(inner, None)
    prompt = "".join(model.prompt_ids("keys", ["01234", "56789"], 5))
    opening = f"keys: {PREFIX}"
    assert prompt == f"{opening}01234|\n{opening}56789|\n{opening}"
    assert model.name == "inner"
    assert inner.document_format.opening == "{label}: "
