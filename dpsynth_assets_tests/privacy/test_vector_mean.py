"""Laws of noisy vector means."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.attacks.audits.sums import release_vector_mean
from dpsynth_assets.privacy import vector_mean
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.vector_mean import (
    VectorMean,
    stacked_l2_sensitivity,
    unit_directions,
)

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation
SETTINGS = {"l2_bounds": (1.0, 3.0), "noise_std": 0.02, "records": 100, "relation": ADD_REMOVE}


def records(count, dimensions=8, seed=0):
    return np.random.default_rng(seed).normal(0, 0.5, (count, 2, dimensions))


@pytest.fixture
def noiseless(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        vector_mean, "discrete_gaussian", lambda values, scale: drawn.append(scale) or list(values)
    )
    return drawn


@pytest.mark.parametrize(("relation", "units", "factor"), [(ZERO_OUT, 3, 3), (REPLACE_ONE, 2, 4)])
def test_worked_sensitivity(relation, units, factor):
    # Bounds 3 and 4 stack to 5; the mean over ten records moves by 0.5 for each vector.
    sensitivity = stacked_l2_sensitivity(
        l2_bounds=[3, 4], records=10, relation=relation, max_records_per_unit=units
    )
    assert sensitivity == pytest.approx(0.5 * factor, rel=1e-12)
    assert sensitivity > 0.5 * factor


@given(st.floats(1e-3, 1e3), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_event_is_noise_over_sensitivity_and_never_above_it(noise_std, bounds):
    settings = {"noise_std": noise_std * max(bounds), "l2_bounds": bounds, "records": 7}
    event = VectorMean(dimensions=1, **settings, relation=REPLACE_ONE).event()
    exact = noise_std * max(bounds) * 7 / (2 * math.sqrt(math.fsum(bound**2 for bound in bounds)))
    assert event.noise_multiplier <= exact * (1 + 1e-15)
    assert event.noise_multiplier == pytest.approx(exact, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.booleans())
def test_integer_noise_over_integer_sensitivity_is_at_least_the_event(seed, count, replace):
    # The exact claim: what is drawn, in lattice steps, against how far integer sums can move.
    generator = np.random.default_rng(seed)
    bounds = generator.uniform(0.1, 10, 2)
    relation = REPLACE_ONE if replace else ADD_REMOVE
    rest = generator.normal(0, 10, (count, 2, 5))
    unit = generator.normal(0, 10.0 ** generator.integers(-3, 9), (2, 2, 5))
    settings_ = {**SETTINGS, "l2_bounds": bounds, "relation": relation, "noise_std": 0.2}
    means = [VectorMean(dimensions=5, **settings_) for _ in range(2)]
    for mean, extra in zip(means, unit, strict=True):
        mean.add(rest)
        if replace or mean is means[0]:
            mean.add(extra[None])
    shift = (means[0]._private_total - means[1]._private_total)[:-1]
    moved_squared = sum(int(step) ** 2 for step in shift)
    noise = means[0]._noise_steps
    if moved_squared:
        assert noise / math.sqrt(moved_squared) >= means[0].event().noise_multiplier * (1 - 1e-15)


@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_the_sensitivity_is_attained(relation):
    far = np.tile(np.array([1e6, 0.0]), (1, 2, 1))
    others = {ADD_REMOVE: [], REPLACE_ONE: [-far]}[relation]
    means = [VectorMean(dimensions=2, **{**SETTINGS, "relation": relation}) for _ in range(2)]
    for mean, vectors in zip(means, ([far], others), strict=True):
        for each in vectors:
            mean.add(each)
    shift = (means[0]._private_total - means[1]._private_total)[:-1]
    ratio = means[0]._noise_steps / np.linalg.norm(shift.astype(float))
    assert ratio == pytest.approx(means[0].event().noise_multiplier, rel=1e-7)


def test_clean_means_are_those_of_clipped_records(noiseless):
    vectors = records(40)
    release = release_vector_mean(vectors, **SETTINGS)
    norms = np.linalg.norm(vectors, axis=2, keepdims=True)
    scales = np.minimum(1.0, np.array([1.0, 3.0])[None, :, None] / norms)
    mean = (vectors * scales).sum(axis=0) / 100
    np.testing.assert_allclose(release.value, mean, atol=1e-8)
    assert noiseless[0] >= 0.02 * 100 / 2.0**-26


def test_release_carries_its_cost():
    release = release_vector_mean(records(3), **SETTINGS)
    assert release.cost.guarantee is GuaranteeType.DP
    assert release.cost.event == VectorMean(dimensions=8, **SETTINGS).event()
    assert isinstance(release.cost.event, GaussianEvent)
    assert release.value.shape == (2, 8)


def test_no_records_release_pure_noise():
    release = release_vector_mean(np.empty((0, 2, 8)), **SETTINGS)
    assert np.isfinite(release.value).all()
    assert release.value.all()


def test_blocks_that_are_not_finite_add_nothing(noiseless):
    vectors = records(5)
    broken = np.concatenate([vectors, np.full((2, 2, 8), np.nan), np.full((1, 2, 8), np.inf)])
    expected = release_vector_mean(vectors, **SETTINGS)
    np.testing.assert_array_equal(release_vector_mean(broken, **SETTINGS).value, expected.value)


def test_nothing_can_be_released_or_added_twice():
    mean = VectorMean(dimensions=8, **SETTINGS)
    mean.add(records(5))
    mean.release()
    assert not mean._private_total.any()
    with pytest.raises(UnaccountedReleaseError, match="second"):
        mean.release()
    with pytest.raises(UnaccountedReleaseError, match="second"):
        mean.add(records(5))


def test_representation_shows_no_sums():
    mean = VectorMean(dimensions=2, **SETTINGS)
    mean.add(np.full((1, 2, 2), 0.125))
    assert "0.125" not in repr(mean)
    assert "array" not in repr(mean)


def test_sums_beyond_64_bits_are_refused(monkeypatch):
    monkeypatch.setattr(vector_mean, "LARGEST_SUM", 1 << 32)
    mean = VectorMean(dimensions=8, **{**SETTINGS, "noise_std": 1e-8})
    with pytest.raises(OverflowError, match="at most"):
        mean.add(records(100))


@pytest.mark.parametrize("shape", [(2, 8), (4, 3, 8), (4, 2, 7)])
def test_vectors_of_another_shape_are_refused(shape):
    mean = VectorMean(dimensions=8, **SETTINGS)
    with pytest.raises(ValueError, match="shape"):
        mean.add(np.zeros(shape))


def test_directions_have_norm_one_and_zero_stays_zero():
    directions = unit_directions(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(directions, [[0.6, 0.8], [0.0, 0.0]])


def test_totals_made_elsewhere_are_the_total_made_here(noiseless):
    vectors = records(30)
    here, there = (VectorMean(dimensions=8, **SETTINGS) for _ in range(2))
    for batch in np.array_split(vectors, [0, 1, 1, 9]):
        here.add(batch)
    for some in (vectors[:7], vectors[7:7], vectors[7:]):
        total = there.sums.empty()
        there.sums.add(total, some)
        there.add_total(total)
    assert here.release().value.tobytes() == there.release().value.tobytes()
    with pytest.raises(UnaccountedReleaseError):
        there.add_total(total)


@pytest.mark.parametrize(
    ("total", "error"),
    [
        (np.zeros(17), TypeError),
        (np.zeros(16, dtype=np.int64), TypeError),
        (np.full(17, 1 << 40, dtype=np.int64), OverflowError),
        (np.full(17, -1, dtype=np.int64), OverflowError),
    ],
    ids=["floats", "another shape", "too many records", "fewer than none"],
)
def test_what_is_no_total_of_these_sums_is_refused(total, error):
    with pytest.raises(error):
        VectorMean(dimensions=8, **SETTINGS).add_total(total)


def test_totals_that_are_too_many_together_are_refused():
    mean = VectorMean(dimensions=8, **SETTINGS)
    total = mean.sums.empty()
    total[-1] = 1 << 34
    mean.add_total(total)
    with pytest.raises(OverflowError):
        mean.add_total(total)
