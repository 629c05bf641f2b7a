import numpy as np
import pytest

from dpsynth_assets.models.topic_model import fitting
from dpsynth_assets.models.topic_model.fitting import (
    NOISE,
    average_neighbors,
    dense_groups,
    principal_components,
    split,
)
from dpsynth_assets.models.topic_model.model import TopicModelSettings
from dpsynth_assets_tests.models.topic_model.conftest import unit


def blobs(centers, size, spread, seed=0):
    random = np.random.default_rng(seed)
    noise = random.normal(size=(len(centers) * size, centers.shape[1]))
    return unit(np.repeat(centers, size, axis=0) + spread * noise / np.sqrt(centers.shape[1]))


def test_a_document_moves_to_the_mean_of_its_neighbours():
    sample = unit(np.random.default_rng(0).normal(size=(50, 8)))
    nearest = np.argsort(-(sample @ sample.T), axis=1)[:, :5]
    expected = unit(sample[nearest].mean(axis=1))
    np.testing.assert_allclose(average_neighbors(sample, 5), expected, atol=1e-5)
    np.testing.assert_array_equal(average_neighbors(sample, 1), sample)


def test_the_inverted_file_finds_nearly_the_same_means(monkeypatch):
    sample = blobs(unit(np.random.default_rng(1).normal(size=(20, 16))), 50, 0.5)
    exact = average_neighbors(sample, 8)
    monkeypatch.setattr(fitting, "EXACT_SEARCH_DOCUMENTS", 10)
    assert (average_neighbors(sample, 8) * exact).sum(axis=1).mean() > 0.99


def test_a_group_that_is_too_large_is_clustered_within_itself():
    """Eight groups near one another lie in one point of components made for others."""
    random = np.random.default_rng(3)
    near = unit(unit(random.normal(size=32)) + 0.05 * random.normal(size=(8, 32)))
    far = unit(random.normal(size=(3, 32)))
    sample = blobs(np.concatenate([near, far]), 50, 0.15)
    plain = {"dimensions": 3, "neighbors": 1}
    whole = dense_groups(sample, TopicModelSettings(**plain, max_topic_share=1.0))
    parts = dense_groups(sample, TopicModelSettings(**plain, max_topic_share=0.1))
    assert (whole.max() + 1, parts.max() + 1) == (4, 11)


def test_a_group_without_inner_structure_is_cut_not_lost(monkeypatch):
    sample = blobs(unit(np.random.default_rng(4).normal(size=(2, 8))), 200, 0.1)
    halves = [np.repeat([0, 1], 200)]
    monkeypatch.setattr(
        fitting,
        "_cluster",
        lambda points, settings: halves.pop() if halves else np.full(len(points), NOISE),
    )
    groups = dense_groups(sample, TopicModelSettings(max_topic_share=0.25))
    assert NOISE not in groups
    assert len(set(groups[:200])) >= 2 <= len(set(groups[200:]))
    assert not set(groups[:200]) & set(groups[200:])


def test_principal_components_hold_the_largest_variance():
    points = np.random.default_rng(5).normal(size=(300, 6)) * [9, 1, 5, 0.1, 3, 0.5]
    projected = principal_components(points.astype(np.float32), 3)
    values = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)[:3]
    np.testing.assert_allclose(np.linalg.norm(projected, axis=0), values, rtol=1e-4)


def test_a_split_gives_every_piece_documents():
    members = unit(np.random.default_rng(6).normal(size=(90, 8)))
    assert np.unique(split(members, 7, seed=0)).tolist() == list(range(7))


def test_groups_are_reported_as_they_are_found(corpus, settings):
    reports = []
    dense_groups(corpus.embeddings, settings, lambda share, message: reports.append(share))
    assert reports == sorted(reports)
    assert 0 <= reports[0] <= reports[-1] <= 1


@pytest.mark.parametrize("documents", [2, 39])
def test_fewer_documents_than_two_groups_are_all_noise(documents):
    sample = unit(np.random.default_rng(7).normal(size=(documents, 8)))
    assert set(dense_groups(sample, TopicModelSettings())) == {NOISE}
