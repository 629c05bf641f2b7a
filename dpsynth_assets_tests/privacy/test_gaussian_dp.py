import math
import sys

import dp_accounting
import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.gaussian_dp import (
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

MUS = st.floats(1e-3, 30.0)
DELTAS = st.floats(1e-15, 0.3)


@given(MUS, st.floats(0.0, 50.0))
def test_delta_is_the_area_between_two_normal_densities(mu, epsilon):
    # Second route: Φ(a) − e^ε Φ(b) in 60 digits.
    import mpmath

    with mpmath.workdps(60):
        a = mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mpmath.mpf(mu)
        exact = mpmath.ncdf(a) - mpmath.exp(epsilon) * mpmath.ncdf(a - mpmath.mpf(mu))
    delta = gaussian_delta(mu, epsilon)
    assert delta >= exact
    assert delta <= float(exact) * (1 + 1e-9) + sys.float_info.min


@given(MUS, DELTAS)
def test_epsilon_is_rounded_up_and_agrees_with_the_library(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-6)


@given(st.floats(1e-3, 100.0), DELTAS)
def test_mu_is_rounded_down_and_turns_epsilon_back(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta < gaussian_delta(mu * (1 + 1e-6), epsilon)
    assert gaussian_epsilon(mu, delta) <= epsilon * (1 + 1e-12)


@given(st.lists(MUS, max_size=5))
def test_composition_adds_squares_and_rounds_up(mus):
    total = compose_mu(mus)
    assert total**2 == pytest.approx(sum(mu**2 for mu in mus))
    assert compose_mu([total]) >= total
    assert compose_mu([3.0, 4.0]) >= 5.0


def test_no_noise_to_see_through_costs_nothing():
    assert gaussian_epsilon(0.0, 1e-9) == 0.0
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_epsilon(1e-12, 1e-6) == 0.0


@pytest.mark.parametrize(("mu", "delta"), [(40.0, 1e-300), (1e3, 1e-30), (1e-6, 1e-300)])
def test_extreme_arguments_stay_finite_and_consistent(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert 0 < epsilon < math.inf
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)
