"""What only writing depends on is an input of the corpus alone, and engines ask for their GPUs."""

import json

import dagster as dg
import pytest

from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets import release_asset
from dpsynth_assets.orchestration.assets.corpora import method_definitions
from dpsynth_assets.report.cards import LABEL_FILE, released_folder
from dpsynth_assets_tests.end_to_end.conftest import private_spec

SETTINGS = {"steps": 2, "expected_batch_size": 8}


def assets_of(tmp_path, monkeypatch, settings=(), **changes):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    spec = private_spec(
        tmp_path,
        public_facts={"labels": {"label": ["billing", "delivery"]}, "records": 100},
        cluster_histogram=None,
        topic_histogram={"noise_std": 5.0},
        methods=[{"method": "ctcl", "settings": {**SETTINGS, **dict(settings)}}],
        schedule=None,
        **changes,
    )
    plan = plan_dataset(spec)
    defined = method_definitions(spec, plan, plan.method("ctcl")).assets
    return {asset.key.path[-1]: asset for asset in defined}


def inputs(asset):
    return {key.path[-1] for key in asset.dependency_keys}


def test_a_judges_model_is_read_by_the_corpus_and_by_no_paid_stage(tmp_path, monkeypatch):
    judged = assets_of(tmp_path, monkeypatch, {"rejection": {"judge": "likelihood"}})
    plain = assets_of(tmp_path, monkeypatch)
    stage = "finetuned_generator"
    assert inputs(judged[stage]) == inputs(plain[stage])
    assert "public_language_model" not in inputs(judged[stage])
    assert inputs(judged["candidate_corpus"]) == inputs(plain["candidate_corpus"]) | {
        "public_language_model"
    }


def test_steps_ask_for_the_gpus_that_share_their_model(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_GPU", "nvidia.com/gpu")
    assets = assets_of(tmp_path, monkeypatch, engine={"kind": "vllm", "tensor_parallel_size": 4})
    for name, devices in (("candidate_corpus", 4), ("finetuned_generator", 1)):
        asked = json.loads(assets[name].op.tags["dagster-ray/config"])
        assert asked["num_gpus"] == devices, "trained on one, served by all"


@pytest.mark.parametrize("published", ["ex-post", "secret", None])
def test_rows_are_chosen_from_a_published_corpus_only_if_it_is_dp(tmp_path, published, own_home):
    spec = private_spec(tmp_path, schedule=None)
    place = released_folder(spec.name, "older")
    place.mkdir(parents=True)

    def publish(kind):
        label = {"subject": {"reservation": "r1"}, "guarantee": {"type": kind}}
        (place / LABEL_FILE).write_text(json.dumps(label))

    if published is not None:
        publish(published)
    with pytest.raises(dg.Failure) as refused:
        release_asset._charge_behind(spec, "older")
    assert f"that is DP, got {published or 'none'}." in refused.value.description
    publish("dp")
    assert release_asset._charge_behind(spec, "older") == "r1"
