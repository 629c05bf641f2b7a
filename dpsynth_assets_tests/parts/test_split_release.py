"""A corpus over parts as the web UI makes it: one charge, passes that survive, errors redacted."""

import json

import numpy as np
import pytest

from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.private_prediction import corpus
from dpsynth_assets.orchestration.assets.dataset import dataset_definitions
from dpsynth_assets.orchestration.assets.release_asset import release_asset
from dpsynth_assets.orchestration.resources.model_pool import stage_step
from dpsynth_assets.orchestration.resources.stores import (
    PrivacyLedger,
)
from dpsynth_assets.sensitive import stored_parts
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets_tests.assets.declared_cases import failure, public_values, run_assets
from dpsynth_assets_tests.parts.conftest import MANIFEST, SECRET, declared, texts
from dpsynth_assets_tests.tiny_models import write_language_model

SETTINGS = {
    "expected_batch_size": 6,
    "max_batches": 4,
    "batches_per_forward": 1,
    "max_document_tokens": 12,
    "max_example_tokens": 12,
    "min_tokens_for_new_document": 3,
    "temperature": 2.0,
}
SHARED = {"private_records", "private_embeddings", "cluster_histogram"}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """What a base says of a tiny language model, whose words are those of the records."""
    said = [text.replace(SECRET, "Somebody") for text in texts(200)]
    folder = tmp_path_factory.mktemp("base") / "model"
    write_language_model(folder, said, vocabulary=300, width=16, layers=1)
    return {"path": str(folder), "dtype": "float32", "device": "cpu"}


def cohort(folder, **changes):
    method = {"method": "mean_clustered", "settings": SETTINGS}
    return declared(
        folder,
        rows=120,
        parts=3,
        methods=[method],
        budget={"epsilon": 60.0, "delta": 1e-5},
        held_out_fraction=0.0,
        **changes,
    )


def only_stage(plan):
    (planned,) = [part for part in plan.parts if isinstance(part, PlannedMethod)]
    (stage,) = planned.plan.stages
    return planned, stage


def materialised(spec, language_model, *, select):
    centers = np.linalg.qr(np.random.default_rng(0).normal(size=(384, 4)))[0].T.astype(np.float32)
    public = public_values(
        "tiny",
        text_embedder=MANIFEST,
        public_clusters=centers,
        public_language_model=language_model,
    )
    plan = plan_dataset(spec)
    (planned, stage), shared = only_stage(plan), dataset_definitions(spec, plan).assets
    assets = [*public, *shared, release_asset(spec, plan, planned, stage)]
    chosen = [each for each in assets if each in public or each.key.path[-1] in select]
    return run_assets(assets, chosen=chosen)


def charges():
    entries = PrivacyLedger().open().entries("letters")
    return [e.kind for e in entries if "candidate_corpus" in str(e.asset)]


def kept_passes(store):
    return sorted((store.folder("letters") / "passes").glob("*/[0-9]*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_corpus_over_parts_is_charged_once_and_reused(
    tmp_path, store, monkeypatch, language_model, count
):
    spec = cohort(tmp_path)
    assert materialised(spec, language_model, select=SHARED).success
    monkeypatch.setenv("DPSYNTH_WORKER_COUNT", count)
    at_reading, made = [], StoredParts.draw_passes

    def watched(self, *arguments, **options):
        at_reading.append(charges())
        return made(self, *arguments, **options)

    monkeypatch.setattr(StoredParts, "draw_passes", watched)
    result = materialised(spec, language_model, select={"candidate_corpus"})
    assert result.success
    assert [*at_reading, charges()] == [["reserve"], ["reserve", "commit"]]
    value = result.output_for_node("letters__mean_clustered__candidate_corpus")
    assert value.height > 0
    assert value["batch"].n_unique() > 1
    assert not list((store.folder("letters") / "passes").glob("*")), "removed with the release"
    reads = [read.reservation for read in store.contributions("letters").reads()]
    assert len(set(reads)) == 2  # Of the histogram and the corpus, each of every part.
    assert len(reads) == 6
    shown = json.dumps([str(event.event_specific_data) for event in result.all_events])
    assert SECRET not in shown
    monkeypatch.setattr(stored_parts.DrawKept, "__call__", None)
    again = materialised(spec, language_model, select={"candidate_corpus"})
    assert again.success
    assert again.output_for_node("letters__mean_clustered__candidate_corpus").equals(value)
    assert charges() == ["reserve", "commit"]


@pytest.mark.slow
def test_a_draw_that_fails_is_redacted_and_goes_on_under_its_charge(
    tmp_path, store, monkeypatch, language_model
):
    spec = cohort(tmp_path)
    assert materialised(spec, language_model, select=SHARED).success
    generate, drawn = corpus.generate_documents, []

    def fails_at_the_third(*arguments, **options):
        if len(drawn) == 2:
            raise ValueError(SECRET)
        drawn.append(1)
        return generate(*arguments, **options)

    monkeypatch.setattr(corpus, "generate_documents", fails_at_the_third)
    result = materialised(spec, language_model, select={"candidate_corpus"})
    assert "pass-00002 in a worker failed with ValueError" in failure(result)
    assert SECRET not in failure(result)
    assert charges() == ["reserve"]
    kept = {path.name: path.read_bytes() for path in kept_passes(store)}
    assert set(kept) == {"0.json", "1.json"}
    drawn.clear()

    def counts(*arguments, **options):
        drawn.append({path.name: path.read_bytes() for path in kept_passes(store)})
        return generate(*arguments, **options)

    monkeypatch.setattr(corpus, "generate_documents", counts)
    result = materialised(spec, language_model, select={"candidate_corpus"})
    assert result.success
    assert charges() == ["reserve", "commit"]
    assert all(kept.items() <= seen.items() for seen in drawn), "kept passes stay as they were"
    facts = [json.loads(content) for content in kept.values()]
    value = result.output_for_node("letters__mean_clustered__candidate_corpus")
    batches = {document["batch"] for values in facts for document in values["documents"]}
    assert batches <= set(value["batch"])
    assert len(drawn) + len(kept) == value["batch"].n_unique()


def test_on_ray_the_tasks_that_draw_ask_for_gpus_and_not_their_step(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_GPU", "nvidia.com/gpu")
    whole, parted = cohort(tmp_path).model_copy(update={"parts": 1}), cohort(tmp_path)
    _, stage = only_stage(plan_dataset(parted))
    assert stage_step(parted, stage)[1] == 0
    monkeypatch.setenv("DPSYNTH_WORKERS", "ray")
    step, gpus = stage_step(parted, stage)
    assert (step["op_tags"], gpus) == ({}, 1)
    step, gpus = stage_step(whole, stage)
    assert (step["op_tags"]["dagster-ray/config"], gpus) == ({"num_gpus": 1}, 0)
