import numpy as np
import pytest

from dpsynth_assets.clustering import fit_centers, nearest_center


def _unit(rows, seed, dimension=12):
    values = np.random.default_rng(seed).normal(size=(rows, dimension))
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def test_centers_have_unit_length_and_equal_seeds_give_equal_centers():
    public = _unit(200, 0)
    centers = fit_centers(public, clusters=7, seed=3)
    assert centers.shape == (7, 12)
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(centers, fit_centers(public, clusters=7, seed=3))


def test_separated_groups_get_a_center_each():
    groups = np.repeat(np.eye(4, 12, dtype=np.float32), 20, axis=0) + 0.01 * _unit(80, 1)
    centers = fit_centers(groups, clusters=4, seed=0)
    assert sorted(np.bincount(nearest_center(groups, centers))) == [20] * 4


def test_fitting_prints_nothing(capfd):
    fit_centers(_unit(30, 0), clusters=10, seed=0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("clusters", [0, 31])
def test_more_clusters_than_documents_are_refused(clusters):
    with pytest.raises(ValueError, match="1 <= clusters <= 30"):
        fit_centers(_unit(30, 0), clusters=clusters, seed=0)
