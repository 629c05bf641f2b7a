import numpy as np
import pytest

from dpsynth_assets.clustering import fit_centers, nearest_center


def unit_rows(rows, dimension, seed):
    values = np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_centers_have_unit_length_and_repeat_by_seed():
    public = unit_rows(400, 16, 0)
    centers = fit_centers(public, clusters=8, seed=3)
    assert centers.shape == (8, 16)
    assert centers.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(centers, fit_centers(public, clusters=8, seed=3))
    assert not np.array_equal(centers, fit_centers(public, clusters=8, seed=4))


def test_separate_groups_get_separate_centers():
    groups = np.eye(4, 16, dtype=np.float32)
    public = np.repeat(groups, 50, axis=0) + 0.01 * unit_rows(200, 16, 1)
    centers = fit_centers(public, clusters=4, seed=0)
    assert sorted(nearest_center(groups, centers).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("clusters", [0, 401])
def test_number_of_centers_is_bounded_by_public_documents(clusters):
    with pytest.raises(ValueError, match="public documents"):
        fit_centers(unit_rows(400, 4, 0), clusters=clusters, seed=0)


def test_nearest_center_has_the_largest_inner_product():
    records, centers = unit_rows(700, 32, 1), unit_rows(50, 32, 2)
    expected = (records.astype(np.float64) @ centers.T.astype(np.float64)).argmax(1)
    nearest = nearest_center(records, centers)
    assert nearest.dtype == np.int32
    np.testing.assert_array_equal(nearest, expected)


def test_assignment_depends_on_the_record_alone():
    records = unit_rows(600, 32, 1)
    # Centres in nearly equal pairs: the least change of rounding would flip an assignment.
    half = unit_rows(20, 32, 2)
    centers = np.concatenate([half, np.nextafter(half, np.float32(1))])
    whole = nearest_center(records, centers)
    order = np.random.default_rng(0).permutation(600)
    np.testing.assert_array_equal(nearest_center(records[order], centers), whole[order])
    np.testing.assert_array_equal(nearest_center(records[17:18], centers), whole[17:18])


def test_equally_near_centers_go_to_the_lowest_index():
    centers = np.repeat(unit_rows(1, 8, 0), 3, axis=0)
    assert nearest_center(centers[:1], centers).tolist() == [0]
    assert nearest_center(centers[:1], centers, allowed=[2, 1]).tolist() == [1]


def test_only_allowed_centers_are_chosen():
    records, centers = unit_rows(100, 8, 1), unit_rows(9, 8, 2)
    assert set(nearest_center(records, centers, allowed=[3, 7])) <= {3, 7}
    with pytest.raises(ValueError, match="at least one allowed"):
        nearest_center(records, centers, allowed=[])
