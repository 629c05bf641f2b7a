"""Every bound is written rounded away from safety, exactly, in every format."""

import math
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.directed_rounding import (
    declared,
    digits_that_differ,
    epsilon_down,
    epsilon_up,
    rounded_down,
    rounded_up,
)

FORMS = ("g", ".2g", ".3g", ".4g", ".6g", ".2f", ".4f", ".17f", ".1e", ".4e")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(value=NUMBERS, form=st.sampled_from(FORMS))
def test_what_is_shown_bounds_the_number_exactly(value: float, form: str) -> None:
    shown = Decimal(repr(value))
    assert Decimal(rounded_down(value, form)) <= shown <= Decimal(rounded_up(value, form))


@pytest.mark.parametrize(
    ("value", "form", "up", "down"),
    [
        (3.3232799769432324, ".4g", "3.324", "3.323"),
        (0.07103492595599145, ".1e", "7.2e-02", "7.1e-02"),
        (0.0499999999, ".4f", "0.0500", "0.0499"),
        (4.0, ".2f", "4.00", "4.00"),
        (999999.5, "g", "1e+06", "999999"),
        (5e-324, ".4g", "5e-324", "5e-324"),
        (math.inf, ".4g", "inf", "inf"),
        (None, ".4g", "–", "–"),
        (-0.126, ".2f", "-0.12", "-0.13"),
    ],
)
def test_known_roundings(value: float | None, form: str, up: str, down: str) -> None:
    assert rounded_up(value, form) == up
    assert rounded_down(value, form) == down


@given(value=NUMBERS)
def test_a_declared_constant_reads_back(value: float) -> None:
    assert float(declared(value)) == value


def test_digits_show_an_excess() -> None:
    assert digits_that_differ(4.5, 4.0) == 2
    assert digits_that_differ(4.00001, 4.0) == 8
    assert digits_that_differ(4.5, 1.234) == 4
    assert digits_that_differ(4.0 + 1e-15, 4.0) == 16


@given(value=NUMBERS)
def test_an_epsilon_as_pages_show_it_bounds_the_number(value: float) -> None:
    exact = Decimal(repr(value))
    assert Decimal(epsilon_down(value)) <= exact <= Decimal(epsilon_up(value))


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (9.730785, "9.74", "9.73"),
        (0.99991, "1", "0.999"),
        (0.3, "0.30", "0.30"),
        (1e-7, "1e-07", "0"),
        (4.0, "4", "4"),
        (math.inf, "inf", "inf"),
        (None, "–", "–"),
    ],
)
def test_an_epsilon_has_three_significant_digits_and_two_decimals(
    value: float | None, up: str, down: str
) -> None:
    assert (epsilon_up(value), epsilon_down(value)) == (up, down)
