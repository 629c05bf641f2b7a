import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.secret_protection import (
    composed_blow_up,
    gaussian_budget,
    gaussian_posterior,
    mixture_blow_up,
    poisson_binomial,
    posterior_of_dp,
    posterior_of_events,
    without_tail,
)

PRIOR = 1e-4
MIXTURE = MixtureGaussianEvent(noise_std=1.5, shifts=(0, 1, 3), probabilities=(0.8, 0.15, 0.05))
SAMPLED = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=1.5, steps=1)


def rounds(event, steps):
    return MixtureGaussianEvent(**{**vars(event), "steps": steps})


# ------------------------------------------------------------------------------- closed forms


@settings(deadline=None)
@given(st.floats(1e-9, 0.5), st.floats(1.001, 1e6))
def test_the_budget_never_exceeds_its_posterior_and_wastes_nothing(prior, ratio):
    posterior = min(prior * ratio, 0.999)
    mu = gaussian_budget(prior, posterior)
    spent = gaussian_posterior(mu, prior)
    assert posterior * (1 - 1e-9) <= spent <= posterior


@pytest.mark.parametrize(
    ("epsilon", "delta", "prior", "reference", "pairwise", "lemma"),
    [
        (math.log(10), 0.0, 0.01, 0.1, 0.09174311926605505, 0.09174311926605505),
        (math.log(10), 1e-5, 0.01, 0.10001, 0.09175220183486239, 0.0923203535136058),
        (3.0, 1e-3, 0.05, 0.9527520721188971, 0.5143727963286737, 0.5209143714989839),
        (1.0, 0.01, 1e-4, 0.010271828182845905, 0.010269063668296254, 0.010371727136933757),
    ],
)
def test_bounds_from_approximate_dp(epsilon, delta, prior, reference, pairwise, lemma):
    found = posterior_of_dp(epsilon, delta, prior, adjacency="reference")
    assert found == pytest.approx(reference, abs=1e-9)
    assert found >= reference * (1 - 1e-14)
    among = posterior_of_dp(epsilon, delta, prior, adjacency="pairwise")
    assert among == pytest.approx(pairwise, abs=1e-9)
    assert among <= max(lemma, reference)


@settings(deadline=None)
@given(st.integers(2, 60), st.floats(0.0, 8.0))
def test_randomised_response_attains_the_pairwise_bound(candidates, epsilon):
    success = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    bound = posterior_of_dp(epsilon, 0.0, 1 / candidates, adjacency="pairwise")
    assert success * (1 - 1e-12) <= bound <= success * (1 + 1e-9)


@settings(deadline=None)
@given(st.floats(0.0, 2000.0), st.floats(0.0, 1.0), st.floats(1e-9, 0.99))
def test_bounds_from_dp_are_probabilities_above_the_prior(epsilon, delta, prior):
    for adjacency in ("reference", "pairwise"):
        bound = posterior_of_dp(epsilon, delta, prior, adjacency=adjacency)
        assert prior <= bound <= 1.0


# ------------------------------------------------------------------------------- compositions


@pytest.mark.parametrize("posterior", [2e-4, 5e-3, 0.3])
def test_convolution_agrees_with_the_closed_form_of_ten_gaussian_rounds(posterior):
    mu = gaussian_budget(PRIOR, posterior)
    event = MixtureGaussianEvent(
        noise_std=math.sqrt(10) / mu, shifts=(1,), probabilities=(1,), steps=10
    )
    exact = posterior_of_events([event], PRIOR)
    assert exact == pytest.approx(posterior, rel=1e-9)
    convolved = composed_blow_up([event], PRIOR)
    assert exact <= convolved <= exact * (1 + 1e-5)


@pytest.mark.parametrize("prior", [1e-6, PRIOR, 0.2])
def test_convolution_agrees_with_the_closed_form_of_one_mixture_round(prior):
    cut = stats.norm.isf(prior) * MIXTURE.noise_std
    tails = stats.norm.sf((cut - np.array(MIXTURE.shifts)) / MIXTURE.noise_std)
    exact = float(tails @ np.array(MIXTURE.probabilities))
    closed = mixture_blow_up(MIXTURE, prior)
    assert exact * (1 - 1e-12) <= closed <= exact * (1 + 1e-9)
    convolved = composed_blow_up([MIXTURE], prior)
    assert closed <= convolved <= closed * (1 + 1e-4)


def test_two_mixture_rounds_agree_with_the_best_test_on_the_plane():
    axis = np.linspace(-9, 15, 1201)
    cell = (axis[1] - axis[0]) / MIXTURE.noise_std
    without = stats.norm.pdf(axis / MIXTURE.noise_std) * cell
    present = sum(
        chance * stats.norm.pdf((axis - shift) / MIXTURE.noise_std) * cell
        for chance, shift in zip(MIXTURE.probabilities, MIXTURE.shifts, strict=True)
    )
    both, neither = np.outer(present, present).ravel(), np.outer(without, without).ravel()
    likely = np.argsort(-both / neither)
    for prior in (1e-3, 0.1):
        chosen = likely[np.cumsum(neither[likely]) <= prior]
        found = posterior_of_events([rounds(MIXTURE, 2)], prior)
        assert found == pytest.approx(both[chosen].sum(), rel=2e-3)


@pytest.mark.parametrize(("noise_std", "shifts"), [(1e-3, (5, 10)), (1.0, (1, 5000))])
def test_far_shifts_stay_within_a_valid_and_tight_bound(noise_std, shifts):
    event = MixtureGaussianEvent(
        noise_std=noise_std, shifts=shifts, probabilities=(1 - 1e-19, 1e-19)
    )
    near = gaussian_posterior(shifts[0] / noise_std * math.sqrt(2), PRIOR)
    found = posterior_of_events([rounds(event, 2)], PRIOR)
    assert near * (1 - 1e-9) <= found <= near * (1 + 1e-4)


def test_order_and_nesting_do_not_matter():
    parts = [rounds(MIXTURE, 2), GaussianEvent(noise_multiplier=3.0), PureEvent(epsilon=0.1)]
    flat = posterior_of_events(parts, PRIOR, occurrences=2)
    nested = [ComposedEvent(events=(parts[2], parts[1])), parts[0]]
    assert posterior_of_events(nested, PRIOR, occurrences=2) == pytest.approx(flat, rel=1e-9)


def test_steps_are_releases():
    one_by_one = posterior_of_events([MIXTURE, MIXTURE, MIXTURE], PRIOR)
    assert posterior_of_events([rounds(MIXTURE, 3)], PRIOR) == pytest.approx(one_by_one, rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(noise_multiplier=3.0),
        DiscreteLaplaceEvent(scale=5.0),
        BoundedRangeEvent(eta=0.2, count=3),
        PureEvent(epsilon=0.3, count=2),
        SAMPLED,
        PoissonGaussianEvent(
            sampling_probability=0.1, noise_multiplier=6.0, steps=1, replaced=True
        ),
        MIXTURE,
    ],
    ids=lambda event: type(event).__name__,
)
def test_every_event_adds_to_what_was_known(event):
    alone = posterior_of_events([event], PRIOR)
    assert alone > PRIOR
    after = posterior_of_events([rounds(MIXTURE, 2), event], PRIOR)
    assert after > posterior_of_events([rounds(MIXTURE, 2)], PRIOR)
    more = posterior_of_events([event], PRIOR, occurrences=3)
    assert (more == alone) if event is MIXTURE else (more > alone)


@pytest.mark.parametrize("events", [[], [PureEvent(epsilon=1, count=0)], [rounds(MIXTURE, 0)]])
def test_nothing_released_leaves_the_prior(events):
    assert posterior_of_events(events, PRIOR) == pytest.approx(PRIOR, rel=1e-9)


# ------------------------------------------------------------------------------ group privacy


@pytest.mark.parametrize("occurrences", [1, 2, 5])
def test_a_secret_in_m_records_moves_a_gaussian_release_m_times_as_far(occurrences):
    event = GaussianEvent(noise_multiplier=4.0)
    found = posterior_of_events([event], PRIOR, occurrences=occurrences)
    assert found == pytest.approx(gaussian_posterior(occurrences / 4.0, PRIOR), rel=1e-9)


@pytest.mark.parametrize("occurrences", [1, 3])
def test_pure_releases_grow_by_the_factor_of_randomised_response(occurrences):
    found = posterior_of_events([PureEvent(epsilon=0.5)], PRIOR, occurrences=occurrences)
    exact = posterior_of_dp(0.5 * occurrences, 0.0, PRIOR, adjacency="reference")
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3)


@pytest.mark.parametrize("occurrences", [1, 3])
def test_laplace_counts_attain_their_own_posterior(occurrences):
    # Threshold tests on a count with noise P(k) ∝ e^(−|k|/2), moved by m.
    axis = np.arange(-200, 201)
    noise = np.exp(-np.abs(axis) / 2.0)
    noise /= noise.sum()
    tails = [(noise[axis >= t].sum(), noise[axis >= t - occurrences].sum()) for t in axis]
    event = DiscreteLaplaceEvent(scale=2.0)
    for prior in (1e-3, 0.2):
        attained = max(hit for alarm, hit in tails if alarm <= prior)
        found = posterior_of_events([event], prior, occurrences=occurrences)
        assert attained <= found
        assert found <= posterior_of_dp(0.5 * occurrences, 0.0, prior, adjacency="reference") * 1.01


@pytest.mark.parametrize("occurrences", [1, 4])
def test_sampled_records_of_a_secret_form_a_binomial_mixture(occurrences):
    counts = np.arange(occurrences + 1)
    cut = stats.norm.isf(PRIOR) * 1.5
    exact = stats.binom.pmf(counts, occurrences, 0.1) @ stats.norm.sf((cut - counts) / 1.5)
    found = posterior_of_events([SAMPLED], PRIOR, occurrences=occurrences)
    assert found == pytest.approx(exact, rel=1e-9)
    unsampled = gaussian_posterior(occurrences / 1.5, PRIOR)
    assert PRIOR < found < unsampled


# ------------------------------------------------------------------------------------- pieces


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=6))
def test_poisson_binomial_is_the_law_of_the_number_of_heads(probabilities):
    expected = np.zeros(len(probabilities) + 1)
    for coins in itertools.product((0, 1), repeat=len(probabilities)):
        weight = math.prod(
            p if coin else 1 - p for p, coin in zip(probabilities, coins, strict=True)
        )
        expected[sum(coins)] += weight
    assert poisson_binomial(probabilities) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.floats(1e-6, 1.0))
def test_a_tail_moves_up_only(records, probability):
    law = poisson_binomial(np.full(records, probability))
    counts, chances = without_tail(law)
    assert chances.sum() == pytest.approx(1.0, abs=1e-12)
    kept = np.zeros(records + 1)
    kept[counts] = chances
    survival, original = kept[::-1].cumsum(), law[::-1].cumsum()
    assert (survival >= original * (1 - 1e-12)).all()


def test_probabilities_that_miss_one_are_completed_at_the_largest_shift():
    short = MixtureGaussianEvent(noise_std=1, shifts=(0, 50), probabilities=(1 - 9e-10, 0))
    assert posterior_of_events([short], 1e-9) >= 1.8e-9


@pytest.mark.parametrize("noise_std", [1.0, 2.0, 6.0])
@pytest.mark.parametrize("occurrences", [1, 3])
def test_whole_counts_tell_of_a_secret_no_more_than_is_said(noise_std, occurrences):
    # Exact: the best guess names the secret where the count exceeds a threshold.
    counts = DiscreteGaussianEvent(noise_std=noise_std)
    values = np.arange(-60, 61)
    noise = np.exp(-(values**2) / (2 * noise_std**2))
    noise /= noise.sum()
    for prior in (1e-4, 1e-2, 0.2):
        stated = posterior_of_events([counts], prior, occurrences=occurrences)
        beyond = noise[::-1].cumsum()[::-1]  # P(noise >= value)
        first = int((beyond > prior).sum())  # the least threshold that the prior allows
        share = (prior - beyond[first]) / noise[first - 1]
        exact = beyond[first - occurrences] + share * noise[first - 1 - occurrences]
        assert exact <= stated <= exact + 0.1
