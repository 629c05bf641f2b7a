import pytest

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import largest_token_count
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
)

OTHERS = [(), (DiscreteLaplaceEvent(scale=10.0),), (GaussianEvent(noise_multiplier=5.0),)]


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_count_is_the_largest_within_the_target(accountant, others):
    eta, target, delta = 0.3, 3.0, 1e-6
    count = largest_token_count(
        eta=eta, target_epsilon=target, delta=delta, accountant=accountant, other_events=others
    )

    def epsilon(tokens):
        event = BoundedRangeEvent(eta=eta, count=tokens)
        return epsilon_of([*others, event], delta, accountant)

    assert count > 0
    assert epsilon(count) <= target < epsilon(count + 1)


@pytest.mark.parametrize(
    ("size", "temperature", "counts"),
    [(127, 1.5, (17, 134, 1117)), (255, 2.0, (126, 962, 8007)), (2047, 2.25, (10333, 78517, None))],
)
def test_zcdp_counts_of_the_amin_2024_grid(size, temperature, counts):
    # c = 10, delta = 1e-6, Theorem 1 without the public-token test.
    for target, expected in zip((1.0, 3.0, 10.0), counts, strict=True):
        count = largest_token_count(
            eta=20 / (size * temperature), target_epsilon=target, delta=1e-6, accountant="zcdp"
        )
        assert expected is None or count == expected


@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_nothing_fits_into_a_spent_budget(accountant):
    spent = (GaussianEvent(noise_multiplier=1.0),)
    arguments = {"eta": 0.5, "delta": 1e-6, "accountant": accountant}
    assert largest_token_count(target_epsilon=1.0, other_events=spent, **arguments) == 0
    assert largest_token_count(target_epsilon=1e-3, **arguments) == 0


def test_tight_falls_back_where_the_recursion_takes_minutes():
    arguments = {"eta": 20 / (1023 * 1.5), "target_epsilon": 10.0, "delta": 1e-6}
    assert largest_token_count(**arguments, accountant="tight") == 72490
    assert largest_token_count(**arguments, accountant="zcdp") == 72490


def test_target_must_be_positive():
    with pytest.raises(ValueError, match="target_epsilon"):
        largest_token_count(eta=0.1, target_epsilon=0.0, delta=1e-6, accountant="zcdp")
