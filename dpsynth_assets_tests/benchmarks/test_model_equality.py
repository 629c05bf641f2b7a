"""Architectures decode to the logits of their own forward pass, or are refused before a charge."""

import time

import numpy as np
import pytest
from dp_kmeans.agreement import (
    agreement,
    score_clusterings,
)
from model_equality import configurations, differences, random_model
from on_a_gpu.parts import Part, run_parts
from transformers import Mamba2Config

from dpsynth_assets.models.transformers_decoder import cached_attention
from dpsynth_assets.models.transformers_decoder.opening import require_equal_logits


def test_every_architecture_gives_the_logits_of_its_own_forward_pass():
    assert {name: apart for name, apart in differences("cpu").items() if apart > 1e-4} == {}


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
def test_a_model_is_tried_before_it_decodes(monkeypatch, name):
    model = random_model(configurations()[name])
    monkeypatch.setattr(cached_attention, "sliding_window", lambda _: None)
    with pytest.raises(ValueError, match=r"packed logits of .* got [01]\..* decoder: vllm"):
        require_equal_logits(model)


def test_a_model_that_keeps_more_of_a_row_than_keys_and_values_is_refused():
    mamba = Mamba2Config(
        vocab_size=61, hidden_size=32, num_heads=8, head_dim=8, n_groups=1, num_hidden_layers=1
    )
    with pytest.raises(ValueError, match="packed logits of mamba2"):
        require_equal_logits(random_model(mamba))


# Parts of benchmarks/gpu.py: what one does to itself harms no other, and what was told is kept.


def test_a_part_that_fails_or_hangs_leaves_its_records_and_the_next_part(tmp_path):
    def fails(device, tell):
        tell(before=device)
        raise ValueError("no such kernel")

    def hangs(device, tell):
        tell(before=device)
        time.sleep(60)

    parts = [Part("a", 9, fails), Part("b", 0.3, hangs), Part("c", 9, lambda _, tell: tell(ok=1))]
    found = run_parts(parts, "cpu", tmp_path / "out.jsonl", 30)
    assert [each["part"] for each in found if "before" in each or "ok" in each] == ["a", "b", "c"]
    assert "no such kernel" in next(each["error"] for each in found if "error" in each)
    assert [each.get("failed", "")[:7] for each in found if "took_s" in each] == [
        "exit st",
        "stopped",
        "",
    ]


# Agreement leaves out what has no class or cluster; sizes count every record once.


def test_records_without_a_class_or_a_cluster_do_not_count():
    classes, clusters = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    longer = agreement(np.append(classes, [-1, 0]), np.append(clusters, [1, -1]))
    assert longer == agreement(classes, clusters)
    assert longer.v_measure == pytest.approx(1)


def test_one_class_alone_has_no_agreement_to_measure():
    assert agreement(np.zeros(5, dtype=int), np.arange(5)) is None


def test_scores_hold_the_numbers_of_the_published_table():
    truth = np.repeat(np.arange(4), 60)
    coarse = np.where(np.arange(240) < 239, truth // 2, 5)
    labels = [str(value // 2) for value in truth]
    exact, merged = score_clusterings(
        {"k-means": truth, "public": coarse}, labels, reference="k-means"
    )
    assert (exact.clusters, exact.usable_clusters, exact.largest_share) == (4, 0, 0.25)
    assert exact.with_reference.v_measure == pytest.approx(1)
    assert (merged.clusters, merged.usable_clusters) == (2, 2)  # a cluster of one is none
    assert merged.sizes.tolist() == [120, 119, 1]
    assert merged.with_reference.homogeneity < 0.6
    assert merged.with_labels.v_measure > 0.9


def test_without_a_reference_or_labels_only_sizes_are_left_and_none_is_printed():
    (scores,) = score_clusterings({"public": np.array([0, 0, 1])}, ["", "", ""], reference="none")
    assert (scores.with_labels, scores.with_reference) == (None, None)
    assert scores.sizes.tolist() == [2, 1]
    assert "sizes" not in repr(scores)
