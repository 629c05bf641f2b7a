"""Laws of `dpsynth calibrate`: what it finds meets the target, and hardly less would not."""

import pytest

from dpsynth_assets.cli.pricing import PRICE_LIST
from dpsynth_assets_tests.privacy.pricing_commands import CALLS, invoke, price


def test_every_mechanism_of_the_list_is_priced_and_calibrated():
    expected = {f"account {name}" for name in PRICE_LIST}
    expected |= {f"calibrate {name}" for name in PRICE_LIST if name != "secret"}
    assert set(CALLS) == expected  # so that the laws over all calls hold for every mechanism


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
@pytest.mark.parametrize("noise_scale", [None, 0.2])
def test_the_most_tokens_fit_and_one_more_does_not(noise_scale, accountant):
    settings = {"svt_noise_scale": noise_scale, "accountant": accountant}
    found = price("calibrate private-prediction", **settings, epsilon=1)
    most = found["private_tokens"]
    assert found["epsilon"] <= 1
    same = price("account private-prediction", **settings, private_tokens=most)
    assert same["epsilon"] == found["epsilon"]
    more = price("account private-prediction", **settings, private_tokens=most + 1)
    assert more["epsilon"] > 1


@pytest.mark.parametrize("noise_scale", [None, 0.2])
def test_the_smallest_batches_fit_and_smaller_ones_do_not(noise_scale):
    settings = {"svt_noise_scale": noise_scale, "expected_batch_size": None, "private_tokens": 100}
    found = price("calibrate private-prediction", **settings)
    smallest = found["expected_batch_size"]
    assert found["epsilon"] <= 3
    settings["expected_batch_size"] = smallest - 1
    assert price("account private-prediction", **settings)["epsilon"] > 3


def test_no_token_fits_where_one_costs_more_than_the_target():
    found = price("calibrate private-prediction", expected_batch_size=1, clip_bound=100)
    assert found["private_tokens"] == found["epsilon"] == 0


def test_tokens_and_batches_are_not_both_given():
    refused = invoke("calibrate private-prediction", private_tokens=3)
    assert refused.exit_code == 2
    assert "exactly one of --expected-batch-size and --private-tokens" in refused.stderr


def test_training_gets_noise_within_a_thousandth_of_the_least():
    found = price("calibrate dp-sgd")
    assert found["epsilon"] <= 1
    settings = {"noise_multiplier": found["noise_multiplier"] * 0.998}
    assert price("account dp-sgd", **settings)["epsilon"] > 1
    alone = price("calibrate dp-sgd", histogram_noise_std=None)
    assert alone["noise_multiplier"] < found["noise_multiplier"]


@pytest.mark.parametrize("wrong", [{"epsilon": 1e-6}, {"steps": 10**9}])
def test_training_that_cannot_be_computed_well_is_refused_at_once(wrong):
    refused = invoke("calibrate dp-sgd", **wrong)
    assert refused.exit_code == 2
    told = " ".join(refused.stderr.replace("│", " ").split())
    assert "epsilon >= 0.0021 at δ" in told or "less than or equal to 10000000" in told


def test_training_beside_a_histogram_that_costs_all_is_refused():
    refused = invoke("calibrate dp-sgd", epsilon=0.1)
    assert refused.exit_code == 2
    assert len(refused.stderr.strip().splitlines()) == 1
