import numpy as np

from dpsynth_assets.metrics.downstream import downstream_accuracy


def test_separable_labels_are_learnt_and_swapped_labels_unlearnt(rides, cakes):
    features = np.concatenate([rides[1], cakes[1]])
    labels = ["ride"] * 60 + ["cake"] * 60
    assert downstream_accuracy(features[::2], labels[::2], features[1::2], labels[1::2]) == 1.0
    swapped = ["cake"] * 60 + ["ride"] * 60
    assert downstream_accuracy(features[::2], swapped[::2], features[1::2], labels[1::2]) == 0.0


def test_single_label_predicts_that_label(rides):
    expected = ["ride"] * 15 + ["cake"] * 45
    assert downstream_accuracy(rides[1], ["ride"] * 60, rides[1], expected) == 0.25


def test_test_text_never_selects_the_model(rides, cakes, monkeypatch):
    from dpsynth_assets.metrics import downstream

    seen = []
    select = downstream._select
    monkeypatch.setattr(
        downstream, "_select", lambda *given: seen.append(given[0]) or select(*given)
    )
    train = np.concatenate([rides[1][:30], cakes[1][:30]])
    downstream_accuracy(train, ["a"] * 30 + ["b"] * 30, rides[1][30:], ["a"] * 30)
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], train)
