"""Published numbers, and numbers that an independent implementation has for published settings.

Papers: Amin et al. 2024 and 2025, CTCL, Aug-PE and SecPE. Where a paper prints no number, the
expected one is of a program that shares no code with this package.
"""

import math
from functools import partial

import numpy as np
import pytest

from dpsynth_assets.methods.private_prediction.method import tokens_within
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.bounded_range import bounded_range_epsilon
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.renyi import zcdp_epsilon_closed_form
from dpsynth_assets.privacy.secret_noise import secret_noise_std
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    poisson_binomial,
)
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism
from dpsynth_assets_tests.privacy.batched import batched

AGNEWS, YELP = 108_000**-1.1, 504_000**-1.1


def tokens(size, temperature, noise, count, clip_bound=10.0):
    """What private tokens are charged, with the public-token test where it has noise."""
    settings = {"expected_batch_size": size, "clip_bound": clip_bound, "temperature": temperature}
    events = [batched(MeanTokenMechanism, **settings).event(count)]
    if noise is not None:
        asked = batched(PublicTokenTest, expected_batch_size=size, noise_scale=noise, threshold=0.0)
        events.append(asked.event(count))
    return events


def most_tokens(epsilon, delta, *settings, **more):
    def price(count):
        return ComposedEvent(events=tuple(tokens(*settings, count, **more)))

    return tokens_within(price, epsilon, delta)


@pytest.mark.parametrize(
    ("settings", "rho", "share", "counts"),
    [
        ((127, 1.5, None), 0.0013777805333388443, 0, (17, 134, 1117)),
        ((127, 2.0, 0.1), 0.013175026350052698, 16 / 17, (1, 14, 116)),
        ((255, 2.0, None), 0.00019223375624759708, 0, (126, 962, 8007)),
        ((255, 2.25, 0.2), 0.0009208234249884898, 81 / 97, (26, 200, 1671)),
        ((1023, 1.5, 0.2), 6.901120009309079e-05, 9 / 13, (352, 2681, 22304)),
        ((1023, 2.0, 0.3), 3.317846158321673e-05, 0.64, (734, 5578, 46393)),
        ((2047, 1.5, 0.3), 1.060673690606947e-05, 0.5, (2296, 17448, 145122)),
        ((2047, 2.25, None), 2.3570526457932153e-06, 0, (10333, 78517, 653052)),
    ],
)
def test_table_7_of_amin_2024(settings, rho, share, counts):
    prices = [event.rho for event in tokens(*settings, 1)]
    assert float(sum(prices)) == pytest.approx(rho, rel=1e-9)
    assert float(sum(prices[1:]) / sum(prices)) == pytest.approx(share, abs=1e-9)
    assert tuple(most_tokens(epsilon, 1e-6, *settings) for epsilon in (1.0, 3.0, 10.0)) == counts


@pytest.mark.parametrize(
    ("settings", "first", "closed", "delta_at_3"),
    [
        ((255, 2.0, 0.2, 100), 2.096275304423021, 2.4008109962383077, 6.9590384669070015e-12),
        ((1023, 1.5, None, 100), 0.2727999840250308, 0.3446794182670953, 0.0),
        ((255, 2.0, 0.2, 500), 5.105934668685218, 5.634037106066965, 0.004148039589078147),
        ((1023, 1.5, None, 500), 0.6418463073815439, 0.7765956024856452, 0.0),
    ],
)
def test_theorem_1_of_amin_2024_in_both_forms(settings, first, closed, delta_at_3):
    events = tokens(*settings)
    assert epsilon_of(events, 1e-6, "zcdp") == pytest.approx(first, abs=1e-6)
    rho = float(sum(event.rho for event in events))
    assert zcdp_epsilon_closed_form(rho, 1e-6) == pytest.approx(closed, abs=1e-6)
    assert privacy_profile(events, [3], "zcdp") == pytest.approx([delta_at_3], abs=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "size", "agnews", "yelp"),
    [(10, 64, 373, 337), (9.9, 64, 367, 331), (3, 256, 733, 642), (2.9, 256, 689, 604)],
)
def test_table_10_of_amin_2025(epsilon, size, agnews, yelp):
    settings = size, 1.5, None
    assert most_tokens(epsilon, AGNEWS, *settings, clip_bound=9.0) == agnews
    assert most_tokens(epsilon, YELP, *settings, clip_bound=9.0) == yelp


def ctcl_delta(records):
    return 1 / (records * math.log(records))


def training(noise_multiplier, rate, steps):
    noise = {"noise_multiplier": noise_multiplier, "sampling_probability": rate, "steps": steps}
    return dp_sgd_event(relation=NeighboringRelation.ADD_REMOVE, **noise)


@pytest.mark.parametrize(
    ("noise", "steps", "histogram", "alone", "whole"),
    [
        (3.03, 2000, 10, 3.9583425833518158, 3.9897),
        (5.63, 2000, 10, 1.936376281068199, 1.9905),
        (11.33, 2000, 10, 0.8974331632399429, 0.9963),
        (3.02, 2016, 20, 3.99171465990601, 3.9995),
    ],
)
def test_appendix_d_of_ctcl(noise, steps, histogram, alone, whole):
    delta, event = ctcl_delta(75_316), training(noise, 4096 / 75_316, steps)
    assert epsilon_of([event], delta, "tight") == pytest.approx(alone, abs=2e-4)
    both = [DiscreteGaussianEvent(noise_std=histogram), event]
    assert epsilon_of(both, delta, "tight") == pytest.approx(whole, abs=2e-4)


@pytest.mark.parametrize(
    ("records", "batch", "steps", "histogram", "printed"),
    [
        (75_316, 4096, 2016, False, (3.01, 5.49, 10.3)),
        (75_316, 4096, 2016, True, (3.03, 5.63, 11.33)),
        (17_940, 256, 2030, False, (1.0, 1.52, 2.61)),
        (1_939_290, 4096, 2365, True, (0.63, 0.77, 0.94)),
        (8396, 4096, 2000, False, (23.3, 42.87, 80.05)),
    ],
)
def test_noise_multipliers_of_appendix_e_of_ctcl(records, batch, steps, histogram, printed):
    delta, event = ctcl_delta(records), training(1.0, batch / records, steps)
    others = [DiscreteGaussianEvent(noise_std=10)] if histogram else []
    found = [
        dp_sgd_noise_multiplier(event, target_epsilon=epsilon, delta=delta, other_events=others)
        for epsilon in (4.0, 2.0, 1.0)
    ]
    assert found == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(
    ("records", "noise", "epsilon"),
    [
        (1_939_290, 15.34, 1.004455),
        (1_939_290, 8.03, 2.002377),
        (1_939_290, 4.24, 4.005258),
        (8396, 11.6, 0.999986),
        (8396, 6.22, 1.996654),
        (8396, 3.38, 3.992231),
    ],
)
def test_ten_rounds_of_votes_of_aug_pe(records, noise, epsilon):
    delta = ctcl_delta(records)
    assert gaussian_epsilon(math.sqrt(10) / noise, delta) == pytest.approx(epsilon, abs=2e-6)
    # The notebook prices whole votes as continuous noise: up to 4e-4 too little.
    votes = DiscreteGaussianEvent(noise_std=noise, count=10)
    assert epsilon_of([votes], delta, "tight") == pytest.approx(epsilon, rel=5e-4)


noise_of_secrets = partial(secret_noise_std, count_probabilities=np.array([0.0, 1.0]))


@pytest.mark.parametrize(
    ("posterior", "mu", "both", "substituted", "ten_rounds"),
    [
        (2e-4, 0.17893268624953373, 0.00026416361486, 0.000388091736505, 24.993398627922478),
        (1e-3, 0.6287841792878957, 0.002328991100037925, 0.006918870322069837, 7.11235444896899),
        (5e-3, 1.1431871819068085, 0.017763254178617238, 0.07598006886761777, 3.911989240064926),
    ],
)
def test_budgets_of_secpe_and_what_comes_of_spending_them_twice(
    posterior, mu, both, substituted, ten_rounds
):
    assert gaussian_budget(1e-4, posterior) == pytest.approx(mu, abs=1e-9)
    for factor, reached in ((1, posterior), (math.sqrt(2), both), (2, substituted)):
        assert gaussian_posterior(factor * mu, 1e-4) == pytest.approx(reached, abs=1e-9)
    found = noise_of_secrets(steps=10, bounds=[(1e-4, posterior)])
    assert ten_rounds * (1 - 1e-9) <= found <= ten_rounds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("ratio", "weights", "every", "drawn"),
    [
        (2, 61.01604601109101, 7.903606613274909, 1.160564762030241),
        (10, 214.41540513717243, 2.2491239585173806, 0.49579918192229133),
        (10, 62.87841792878957, 2.2491239585173806, 0.6621347246163358),
    ],
)
def test_figure_3_of_secpe_where_no_two_secrets_share_a_record(ratio, weights, every, drawn):
    settings = {"steps": 1, "bounds": [(1e-4, ratio * 1e-4)], "noise_floor": 1e-3}
    assert noise_of_secrets(**settings) == pytest.approx(every, rel=1e-6)
    sampled = poisson_binomial([1 / weights])
    assert secret_noise_std(count_probabilities=sampled, **settings) == pytest.approx(
        drawn, rel=1e-4
    )


FIFTY = BoundedRangeEvent(eta=0.1875, count=50)
PAPER = [DiscreteLaplaceEvent(scale=10.0), BoundedRangeEvent(eta=0.1875, count=367)]
COUNTS = DiscreteGaussianEvent(noise_std=10)
TESTED = tokens(255, 2.0, 0.2, 100)


def whole(noise_multiplier):
    return [GaussianEvent(noise_multiplier=noise_multiplier)]


@pytest.mark.parametrize(
    ("events", "delta", "accountant", "epsilon", "tolerance"),
    [
        (PAPER, AGNEWS, "zcdp", 9.907, 1e-3),  # Printed as 9.9 + 0.1.
        (PAPER, AGNEWS, "tight", 9.283, 5e-3),
        (TESTED, 1e-6, "tight", 1.932, 2e-3),
        ([COUNTS], ctcl_delta(75_316), "tight", 0.3929938688873648, 1e-4),
        ([FIFTY], 1e-6, "tight", 3.0703125, 1e-9),
        ([FIFTY], 1e-6, "zcdp", 3.2979866987399666, 1e-6),
        ([training(1.0, 0.1, 1)], 1e-5, "zcdp", 2.1330059954307927, 5e-3),
        (whole(1.0), 1e-5, "zcdp", 4.728507067217623, 1e-3),
        (whole(0.5), 1e-5, "tight", 9.99725615024243, 1e-3),
        (whole(250 * 0.3409394), 1e-6, "tight", 0.04, 1e-7),  # A mean of 250 vectors: 0.34.
    ],
)
def test_single_numbers(events, delta, accountant, epsilon, tolerance):
    assert epsilon_of(events, delta, accountant) == pytest.approx(epsilon, abs=tolerance)


def test_an_adversary_of_fifty_draws():
    lower = bounded_range_epsilon(0.1875, 50, 1e-6, upper=False)
    assert lower == pytest.approx(3.0625, abs=0.02)
