"""Appendices D and E of CTCL from the paper's own settings.

Every multiplier is compared in `test_published_vectors`; here the settings are derived as the paper
derives them, with the number of steps that its code takes (errata B-002.3).
"""

import math
from functools import cache

import pytest

from dpsynth_assets_tests.privacy.training_prices import calibrated_training

RECORDS = {"PubMed": 75_316, "Multi-Session Chat": 17_940, "OpenReview": 8_396}
HISTOGRAM_STD = 10
HALF_OF_THE_LAST_DIGIT = 0.005


@cache
def calibrated(dataset, epsilon, *, batch=4096, histogram=HISTOGRAM_STD, steps=None):
    records = RECORDS[dataset]
    return calibrated_training(
        batch / records,
        steps or whole_epochs(records, batch),
        epsilon=epsilon,
        delta=1 / (records * math.log(records)),
        histogram_noise_std=histogram,
    )


def rounded(printed):
    """How far a printed multiplier may lie from ours: its last digit, and both searches' ends."""
    return HALF_OF_THE_LAST_DIGIT + 1.5e-3 * printed


def whole_epochs(records, batch):
    """2000 steps rounded up to epochs without their last, incomplete batch."""
    epoch = records // batch
    return math.ceil(2000 / epoch) * epoch


def test_the_code_trains_for_whole_epochs():
    steps = {name: whole_epochs(records, 4096) for name, records in RECORDS.items()}
    assert steps == {"PubMed": 2016, "Multi-Session Chat": 2000, "OpenReview": 2000}


@pytest.mark.parametrize(
    ("dataset", "epsilon", "settings", "printed"),
    [
        ("PubMed", 4, {"histogram": None}, 3.01),
        ("PubMed", 4, {}, 3.03),
        ("PubMed", 1, {}, 11.33),
        ("Multi-Session Chat", 1, {}, 42.70),
        ("OpenReview", 4, {}, 23.44),
    ],
)
def test_appendix_e_is_reproduced(dataset, epsilon, settings, printed):
    found = calibrated(dataset, epsilon, **settings)
    assert found["epsilon"] <= epsilon
    assert found["noise_multiplier"] == pytest.approx(printed, abs=rounded(printed))


@pytest.mark.parametrize(("epsilon", "training"), [(4, 3.96), (2, 1.94), (1, 0.90)])
def test_appendix_d_is_reproduced(epsilon, training):
    found = calibrated("PubMed", epsilon)
    assert found["epsilon_histogram"] == pytest.approx(0.39, abs=HALF_OF_THE_LAST_DIGIT)
    assert found["epsilon_training"] == pytest.approx(training, abs=HALF_OF_THE_LAST_DIGIT + 5e-3)
    assert found["epsilon_training"] + found["epsilon_histogram"] > found["epsilon"]


def test_a_quieter_histogram_changes_little():
    found = calibrated("PubMed", 4, histogram=20)
    assert found["epsilon_training"] == pytest.approx(3.99, abs=HALF_OF_THE_LAST_DIGIT)
    assert found["noise_multiplier"] == pytest.approx(3.02, abs=rounded(3.02))


def test_the_printed_number_of_steps_would_need_less_noise_than_is_printed():
    assert calibrated("PubMed", 1, steps=2000)["noise_multiplier"] < 11.30
