import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from dpsynth_assets.privacy.lattice import RESOLUTION_BITS, Lattice

FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)
BOUNDS = st.floats(1e-200, 1e200)


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(0, 6)), elements=FLOATS),
    BOUNDS,
    st.floats(2.0**-20, 1.0),
)
def test_no_vector_of_floats_exceeds_the_integer_bound(vectors, largest, share):
    lattice, bound = Lattice.for_bound(largest), largest * share
    steps = lattice.clip(vectors, bound)
    assert steps.dtype == np.int64
    assert steps.shape == vectors.shape
    for row in steps:
        # In Python integers, which never overflow.
        assert sum(int(step) ** 2 for step in row) <= lattice.steps(bound) ** 2
    assert lattice.steps(bound) <= bound / lattice.spacing


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), BOUNDS, st.sampled_from([1e-3, 1.0, 1e3]))
def test_records_are_clipped_as_reals_are_up_to_steps(seed, dimensions, bound, size):
    direction = np.random.default_rng(seed).normal(size=(3, dimensions))
    lengths = np.linalg.norm(direction, axis=1, keepdims=True)
    vectors = direction * (bound * size) / lengths
    lattice = Lattice.for_bound(bound)
    clipped = lattice.to_floats(lattice.clip(vectors, bound))
    ideal = vectors * min(1.0, 1 / size)
    # One step of the bound's own floor, half of rounding, one of shrinking.
    assert np.abs(clipped - ideal).max() <= 2.51 * lattice.spacing


def test_a_row_does_not_depend_on_the_other_rows():
    generator = np.random.default_rng(0)
    vectors = generator.normal(0, 10.0 ** generator.integers(-3, 3, (50, 1)), (50, 37))
    lattice = Lattice.for_bound(2.0)
    together = lattice.clip(np.asfortranarray(vectors), 2.0)
    alone = [lattice.clip(vectors[row : row + 1], 2.0)[0] for row in range(50)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_becomes_zero(broken):
    steps = Lattice.for_bound(1.0).clip(np.array([[1.0, broken], [0.6, 0.8]]), 1.0)
    assert not steps[0].any()
    assert steps[1].any()


def test_clipping_leaves_its_input_alone():
    vectors = np.array([[30.0, 40.0]])
    Lattice.for_bound(1.0).clip(vectors, 1.0)
    np.testing.assert_array_equal(vectors, [[30.0, 40.0]])


@given(BOUNDS)
def test_the_largest_bound_spans_its_stated_number_of_steps(bound):
    lattice = Lattice.for_bound(bound)
    assert 2 ** (RESOLUTION_BITS - 1) <= lattice.steps(bound) < 2**RESOLUTION_BITS
    assert lattice.to_floats(np.array([1]))[0] == lattice.spacing
