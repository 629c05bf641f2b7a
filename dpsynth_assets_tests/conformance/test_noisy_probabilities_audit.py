"""Audit of tokens chosen by noisy mean probabilities against their event, with planted bugs.

One subset is certain of token 1 with the record and of token 0 without it; the others stand half
for either, so that the argmax of two noisy numbers is the best test there is. False alarm: at most
1e-6 for each audit if the claim holds.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsynth_assets.attacks.audits.audit import audit_event_counts, event_curve
from dpsynth_assets.privacy import noisy_probabilities
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.noisy_probabilities import NoisyProbabilities

SUBSETS, TRIALS, RUNS, STEPS = 3, 700, 400, 9
CERTAIN = 800.0 * np.eye(3)
BALANCED = CERTAIN[:2]
PUBLIC = torch.tensor([2.0, 1.0, 0.0])


def mechanism(kind=NoisyProbabilities, **changes):
    settings = {
        "subsets": SUBSETS,
        "examples_per_subset": 1,
        "sampling_probability": 1.0,
        "noise_multiplier": 1.0,
        "steps": TRIALS,
        "top_k": 2,
        "relation": NeighboringRelation.ADD_REMOVE,
    }
    return kind(**(settings | changes))


def opinions(subsets):
    """The subset that holds the record is for token 1, where one is for token 0 without it."""
    owner = next((place for place, members in enumerate(subsets) if len(members)), None)
    opinion = CERTAIN[0 if owner is None else 1]
    return torch.from_numpy(np.insert(BALANCED, owner or 0, opinion, axis=0))


def tokens(tested, records):
    """(steps,) tokens of a whole run over a label that has the record, or has none."""
    chosen = []
    while tested.steps_left:
        chosen.append(tested.select(opinions(tested.draw(records)), PUBLIC))
    return np.array(chosen)


def refutes(tested, claimed=None):
    """Tests single steps: every step of the run is a trial."""
    claimed = replace((claimed or tested).event(), steps=1)
    hits = int((tokens(tested, 1) == 1).sum())
    alarms = int((tokens(replace(tested), 0) == 1).sum())
    found = audit_event_counts(hits, alarms, tested.steps, event_curve([claimed]))
    return not found.passed


@pytest.mark.statistical
@pytest.mark.parametrize("probability", [1.0, 0.5])
def test_a_token_tells_no_more_than_its_event(probability):
    assert not refutes(mechanism(sampling_probability=probability))


@pytest.mark.statistical
def test_all_steps_together_tell_no_more_than_their_event():
    def guessed(records):
        runs = (tokens(mechanism(steps=STEPS), records) for _ in range(RUNS))
        return sum(bool(2 * (run == 1).sum() > STEPS) for run in runs)

    counts, claimed = (guessed(1), guessed(0), RUNS), mechanism(steps=STEPS).event()
    assert audit_event_counts(*counts, event_curve([claimed])).passed
    # Planted bug: all steps charged as one.
    assert not audit_event_counts(*counts, event_curve([replace(claimed, steps=1)])).passed


@pytest.mark.statistical
def test_noise_for_the_mean_that_is_divided_by_m_is_caught(monkeypatch):
    # Planted bug: noise for the mean added to the sum before it is divided by M.
    sampler = noisy_probabilities.discrete_gaussian
    monkeypatch.setattr(
        noisy_probabilities,
        "discrete_gaussian",
        lambda values, scale: sampler(values, scale / SUBSETS),
    )
    assert refutes(mechanism())


@pytest.mark.statistical
def test_samples_that_hold_everyone_are_caught(monkeypatch):
    # Planted bug: the amplification of sampling is claimed, and nothing is sampled.
    monkeypatch.setattr(
        noisy_probabilities, "poisson_sample", lambda records, probability: np.arange(records)
    )
    assert refutes(mechanism(sampling_probability=0.3))


class PrivateSupport(NoisyProbabilities):
    """Planted bug: the K tokens are those that are likeliest in the private mean."""

    def select(self, private_logits, public_logits):
        return super().select(private_logits, private_logits.softmax(dim=1).mean(dim=0))


@pytest.mark.statistical
def test_a_support_chosen_by_private_probabilities_is_caught():
    assert refutes(mechanism(PrivateSupport, top_k=1))
    assert not refutes(mechanism(top_k=1))


# Samples of fixed size, dealt out by position


def dealt(records, seed, *, size, subsets):
    """As the published code draws: a seeded permutation, its first records, subset by subset."""
    shuffled = np.random.default_rng(seed).permutation(records)[:size]
    return [tuple(shuffled[subset::subsets].tolist()) for subset in range(subsets)]


def dealt_tokens(tested, records, known):
    """A model that knows the subsets with the record: token 1 for each of them, else token 0."""
    chosen = []
    for seed in range(tested.steps):
        tested.draw(records)
        subsets = dealt(records, seed, size=2 * SUBSETS, subsets=SUBSETS)
        rows = CERTAIN[[int(subset in known[seed]) for subset in subsets]]
        chosen.append(tested.select(torch.from_numpy(rows), PUBLIC))
    return np.array(chosen)


@pytest.mark.statistical
def test_seeded_samples_of_fixed_size_are_caught():
    """One record more changes every subset, where Poisson samples change one at most."""
    records, size = 12, 2 * SUBSETS
    known = [dealt(records, seed, size=size, subsets=SUBSETS) for seed in range(TRIALS)]
    tested = mechanism(sampling_probability=size / records)
    hits = int((dealt_tokens(tested, records, known) == 1).sum())
    alarms = int((dealt_tokens(replace(tested), records - 1, known) == 1).sum())
    claimed = event_curve([replace(tested.event(), steps=1)])
    assert not audit_event_counts(hits, alarms, TRIALS, claimed).passed
