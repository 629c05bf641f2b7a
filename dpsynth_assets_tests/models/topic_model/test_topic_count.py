import numpy as np

from dpsynth_assets.models.topic_model.fitting import NOISE, mean_directions, within_bounds
from dpsynth_assets.models.topic_model.model import TopicModelSettings
from dpsynth_assets_tests.models.topic_model.conftest import unit


def sample_of(groups, spread=0.1):
    random = np.random.default_rng(0)
    centers = random.normal(size=(groups.max() + 2, 12))
    return unit(centers[groups] + spread * random.normal(size=(len(groups), 12)))


def test_a_number_within_bounds_is_left_alone():
    groups = np.array([0, 0, 1, NOISE, 2, 2])
    bounds = TopicModelSettings(min_topics=2, max_topics=3)
    np.testing.assert_array_equal(within_bounds(groups, sample_of(groups), bounds), groups)


def test_the_largest_group_is_split_first():
    groups = np.repeat([0, 1, NOISE], [90, 20, 5])
    split = within_bounds(groups, sample_of(groups), TopicModelSettings(min_topics=4))
    assert len(np.unique(split[:90])) == 3
    assert len(np.unique(split[90:110])) == 1
    assert set(split[110:]) == {NOISE}
    assert sorted(set(split.tolist())) == [NOISE, 0, 1, 2, 3]


def test_without_groups_everything_is_split():
    groups = np.full(60, NOISE)
    split = within_bounds(groups, sample_of(groups), TopicModelSettings(min_topics=3))
    assert sorted(set(split.tolist())) == [0, 1, 2]


def test_the_nearest_groups_are_merged():
    centers = np.eye(4, dtype=np.float32)
    centers[3] = unit(centers[2] + 0.1)
    groups = np.repeat([0, 1, 2, 3, NOISE], [5, 5, 5, 5, 1])
    sample = centers[np.maximum(groups, 0)]
    merged = within_bounds(groups, sample, TopicModelSettings(min_topics=1, max_topics=3))
    assert merged[10] == merged[15]
    assert len({merged[0], merged[5], merged[10]}) == 3
    assert merged[20] == NOISE


def test_mean_directions_average_members():
    members = unit(np.random.default_rng(1).normal(size=(7, 5)))
    groups = np.array([1, 0, 1, 2, 0, 2, 2])
    expected = unit(np.stack([members[groups == g].mean(axis=0) for g in range(3)]))
    np.testing.assert_allclose(mean_directions(members, groups), expected, atol=1e-6)
