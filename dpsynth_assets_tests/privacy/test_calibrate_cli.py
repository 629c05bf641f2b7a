"""Laws of `dpsynth calibrate`: what it finds meets the target, and hardly less would not."""

import math

import pytest

from dpsynth_assets.cli.pricing import PRICE_LIST
from dpsynth_assets_tests.privacy.pricing_commands import CALLS, invoke, price

TEST_OFF = {"svt_noise_scale": None}

PRICED_ONLY = {"tokens", "svt", "bounded-range"}
"""`tokens` has its search as an option; the other two are parts of what others search for."""


def test_every_mechanism_of_the_list_is_priced_and_calibrated():
    priced = {name for name, (price, _) in PRICE_LIST.items() if price is not None}
    calibrated = {name for name, (_, search) in PRICE_LIST.items() if search is not None}
    assert calibrated == priced - PRICED_ONLY
    expected = {f"account {name}" for name in priced} | {f"calibrate {name}" for name in calibrated}
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


@pytest.mark.parametrize("relation", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_histogram_gets_the_least_noise(noise, relation):
    settings = {"noise": noise, "relation": relation}
    found = price("calibrate histogram", **settings, epsilon=0.5)
    assert found["epsilon"] <= 0.5
    key = "epsilon" if noise == "gaussian" else "pure_epsilon"
    less = price("account histogram", **settings, scale=found["scale"] * 0.999, delta=1e-5)
    assert less[key] > 0.5
    if noise == "gaussian":
        assert found["scale"] < found["scale_zcdp"]
        assert found["scale"] < found["scale_classical"]


def test_replacement_costs_a_gaussian_histogram_root_two_and_a_laplace_one_two():
    for noise, factor in (("gaussian", math.sqrt(2)), ("laplace", 2)):
        one, two = (
            price("calibrate histogram", noise=noise, relation=relation)["scale"]
            for relation in ("add-remove", "replace-one")
        )
        assert two == pytest.approx(factor * one, rel=1e-3)  # whole counts: not quite √2


def test_votes_get_the_least_noise_and_never_less_than_one():
    found = price("calibrate voting", votes_per_record=2, relation="replace-one")
    assert found["epsilon"] <= 1
    unit = {"votes_per_record": 2, "relation": "replace-one", "delta": 1e-5}
    assert price("account voting", **unit, noise_std=found["noise_std"] * 0.999)["epsilon"] > 1
    assert price("calibrate voting", epsilon=1000)["noise_std"] == 1


def test_four_rules_for_one_gaussian_release_stand_side_by_side():
    found = price("calibrate gaussian", epsilon=0.5)
    exact = found["noise_std"]
    release = {"noise_multiplier": exact / 0.004, "count": 1, "delta": 1e-6}
    assert price("account gaussian", **release)["epsilon"] <= 0.5
    release["noise_multiplier"] *= 0.999
    assert price("account gaussian", **release)["epsilon"] > 0.5
    assert exact < found["noise_std_zcdp"]
    assert exact < found["noise_std_classical"]
    bounded_range = found["noise_std_of_equal_rho_bounded_range"]
    assert (0.004 / bounded_range) ** 2 / 2 == pytest.approx(0.5**2 / 8)
    by_rho = price("calibrate gaussian", epsilon=None, delta=None, rho=0.5**2 / 8)
    assert by_rho["noise_std_zcdp"] == pytest.approx(bounded_range)


@pytest.mark.parametrize(("epsilon", "too_little"), [(0.9, False), (5, False), (10, True)])
def test_the_classical_formula_is_exposed_where_it_under_noises(epsilon, too_little):
    found = price("calibrate gaussian", epsilon=epsilon, delta=1e-5)
    assert found["classical_under_noises"] is too_little
    assert (found["noise_std_classical"] < found["noise_std"]) is too_little
    assert found["classical_formula_applies"] is (epsilon <= 1)
    assert ("too little" in invoke("calibrate gaussian", epsilon=epsilon, delta=1e-5).stdout) is (
        too_little
    )


def test_epsilon_comes_with_delta_and_rho_alone():
    for changes in ({"rho": 1}, {"delta": None}, {"epsilon": None}):
        assert invoke("calibrate gaussian", **changes).exit_code == 2


def test_vectors_get_the_least_noise_jointly():
    settings = {"histogram_epsilon": None}
    found = price("calibrate vectors", **settings)
    release = {"subset_fraction": 1, "histogram_noise_std": None}
    again = price("account vectors", **release, noise_std=found["noise_std"])
    assert again["epsilon"] == pytest.approx(3, rel=1e-9)
    less = price("account vectors", **release, noise_std=found["noise_std"] * 0.999)
    assert less["epsilon"] > 3
    assert found["noise_std_layer_by_layer"] > 1.5 * found["noise_std"]
    assert found["noise_std_classical"] > found["noise_std_layer_by_layer"]
    zeroed = price("calibrate vectors", **settings, relation="zero-out")
    assert found["noise_std"] == pytest.approx(2 * zeroed["noise_std"])


def test_vectors_share_a_budget_with_their_histogram():
    joint = price("calibrate vectors", histogram_epsilon=None, histogram_noise_std=46)
    basic = price("calibrate vectors", histogram_epsilon=0.146)
    assert joint["noise_std"] < basic["noise_std"]
    both = {"subset_fraction": 1, "histogram_noise_std": 46}
    again = price("account vectors", **both, noise_std=joint["noise_std"])
    assert again["epsilon"] == pytest.approx(3, rel=1e-9)
    costly = invoke("calibrate vectors", histogram_epsilon=None, histogram_noise_std=1)
    assert costly.exit_code == 2
    assert "Raise --histogram-noise-std" in costly.stderr


def test_a_subset_may_spend_more_and_the_whole_gets_the_target():
    found = price("calibrate vectors", histogram_epsilon=None, subset_fraction=0.04)
    assert found["epsilon_before_amplification"] > 3
    release = {"subset_fraction": 0.04, "histogram_noise_std": None}
    again = price("account vectors", **release, noise_std=found["noise_std"])
    assert again["epsilon"] == pytest.approx(3, rel=1e-9)


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


@pytest.mark.parametrize(
    ("adjacency", "release", "factor"),
    [
        ("removal", "counts", 1),
        ("removal", "joint", math.sqrt(2)),
        ("substitution", "counts", math.sqrt(2)),
        ("substitution", "joint", 2),
    ],
)
def test_a_secret_costs_noise_for_each_part_end_round_and_record(adjacency, release, factor):
    found = price("calibrate secret", adjacency=adjacency, release=release)
    budget = price("account secret")["mu"]
    assert found["noise_std"] == pytest.approx(factor * 2 * math.sqrt(10) / budget)
    assert found["posterior"] <= 1e-3


def test_sampled_records_need_less_noise_and_keep_the_bound():
    secret = {"adjacency": "removal", "rounds": 1}
    drawn = {"sampling_probabilities": "0.3,0.3"}
    every = price("calibrate secret", **secret)
    found = price("calibrate secret", **secret, **drawn)
    assert found["noise_std"] < every["noise_std"]
    at = {"posterior": None, "adjacency": "removal", **drawn}
    assert price("account secret", **at, noise_std=found["noise_std"])["posterior"] <= 1e-3
    assert price("account secret", **at, noise_std=found["noise_std"] * 0.999)["posterior"] > 1e-3


def test_rare_records_keep_the_noise_floor():
    rare = {"adjacency": "removal", "rounds": 1, "sampling_probabilities": 1e-4}
    assert price("calibrate secret", **rare)["noise_std"] == pytest.approx(1)
    assert price("calibrate secret", **rare, noise_floor=2)["noise_std"] == pytest.approx(2)
