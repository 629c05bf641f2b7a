"""Stages that count over parts: one result for any parts and workers, one charge, one draw."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.evolution.votes import VoteCounts
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.registry import REGISTRY, bound_method
from dpsynth_assets.methods.shared_histograms import CellCounts, TopicCounts
from dpsynth_assets.methods.work import TEXT_EMBEDDER
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.orchestration.assets.dataset import dataset_definitions
from dpsynth_assets.orchestration.resources.model_pool import model_step, stage_step, step_of_tasks
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, SensitiveStore
from dpsynth_assets.paths import home, located
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.sensitive import part_tasks
from dpsynth_assets.sensitive.read_source import embed_parts, store_records
from dpsynth_assets.sensitive.record_parts import read_whole
from dpsynth_assets.sensitive.sealing import HEADER, KEY_VARIABLE
from dpsynth_assets.sensitive.stored_parts import StoredParts
from dpsynth_assets.workers import LocalWorkers, WorkerError
from dpsynth_assets_tests.assets.declared_cases import failure, public_values, run_assets
from dpsynth_assets_tests.methods.cohorts import made_terms, made_topics
from dpsynth_assets_tests.methods.private_prediction.conftest import NAMES
from dpsynth_assets_tests.object_stores import bucket, s3_address
from dpsynth_assets_tests.parts.conftest import BY_LABEL, LABELS, MANIFEST, SECRET, declared, silent
from dpsynth_assets_tests.security.conftest import key
from dpsynth_assets_tests.stored import read_private_records

__all__ = ["bucket", "s3_address"]

ROWS = 120


@pytest.fixture(scope="module")
def public():
    """Embeddings of public texts: eight of them serve as centres, topics and candidates."""
    said = [f"A note on the {word}" for word in ["river", "lantern", "orchard", "winter"]]
    return TextEmbedder(max_tokens=32).embed([*said, *[f"{line} again" for line in said]])


def countings(public):
    return {
        "centres": CellCounts(labels=LABELS, centers=public, kept=[range(8), [1, 5, 6]]),
        "topics": TopicCounts(labels=LABELS, topic_model=made_topics(public, 0.2)),
        "votes": VoteCounts(
            labels=LABELS, candidates=public, candidate_labels=np.arange(8, dtype=np.int64) % 2
        ),
        "labels": BY_LABEL,
    }


def stored(folder, store, parts, workers):
    spec = declared(folder, rows=ROWS, parts=parts)
    store_records(spec, store, workers)
    places = store.parts("letters").places
    embed_parts(MANIFEST, places, workers, silent)
    return places


@pytest.fixture(scope="module")
def expected(tmp_path_factory, public):
    """Records that lie whole, their embeddings and counts, as one process makes them."""
    folder = tmp_path_factory.mktemp("whole")
    private = read_private_records(declared(folder, rows=ROWS))
    embeddings = TextEmbedder(max_tokens=32).embed(private.records["text"].to_list())
    inputs = PrivateInputs(records=private.records, embeddings=embeddings)
    return inputs, {name: count(inputs) for name, count in countings(public).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "count"), [(7, 1), (3, 4)], ids=str)
def test_results_are_bit_equal_for_any_parts_and_workers(
    tmp_path, store, public, expected, parts, count
):
    inputs, counts = expected
    with LocalWorkers(count).opened() as workers:
        places = stored(tmp_path, store, parts, workers)
        whole = read_whole(places, "source", with_embeddings=True)
        assert whole.records.equals(inputs.records)
        assert whole.embeddings.tobytes() == inputs.embeddings.tobytes()
        for name, counting in countings(public).items():
            summed = StoredParts(places, workers).summed(counting)
            assert summed.dtype == np.int64
            assert np.array_equal(summed, counts[name]), name
            assert np.array_equal(inputs.counted(counting), summed)
            assert summed.sum() > 0


def test_embedding_goes_on_from_the_parts_that_are_finished(tmp_path, store, monkeypatch):
    spec = declared(tmp_path, rows=ROWS, parts=4)
    store_records(spec, store, LocalWorkers(1))
    places = store.parts("letters").places
    whole_task = part_tasks.embed_part

    def dies_at_the_third(manifest, here, part):
        if part == places[2]:
            raise MemoryError(SECRET)
        return whole_task(manifest, here, part)

    monkeypatch.setattr(part_tasks, "embed_part", dies_at_the_third)
    with pytest.raises(WorkerError, match="00002-of-00004 in a worker failed: out of memory"):
        embed_parts(MANIFEST, places, LocalWorkers(1), silent)
    made = [place / "source_embeddings.npy" for place in places]
    assert [path.exists() for path in made] == [True, True, False, False]
    before = [path.stat().st_mtime_ns for path in made[:2]]
    monkeypatch.setattr(part_tasks, "embed_part", whole_task)
    embed_parts(MANIFEST, places, LocalWorkers(1), silent)
    assert all(path.exists() for path in made)
    assert [path.stat().st_mtime_ns for path in made[:2]] == before


def test_workers_that_embed_in_different_ways_are_refused(tmp_path, store):
    class Mixed:
        count = 2

        def map_parts(self, function, parts, *, gpus=0, memory=0):
            yield {"arithmetic": "int8", "device": "cpu"}
            yield {"arithmetic": "one text a pass", "device": "cuda"}

    with pytest.raises(PrivacyError, match="Use nodes of one kind"):
        embed_parts(MANIFEST, [tmp_path, tmp_path], Mixed(), silent)


def test_a_mechanism_that_knows_no_parts_refuses_them():
    """Embeddings are absent beside parts: nothing is released over the empty records."""
    inputs = PrivateInputs(records=pl.DataFrame({"text": [], "label": []}), parts=None)
    with pytest.raises(ValueError, match="Expected one embedding for each private record"):
        CellCounts(labels=LABELS, centers=np.eye(2), kept=[range(2)] * 2)(inputs)


def test_a_part_without_embeddings_is_not_counted(tmp_path, store, public):
    store_records(declared(tmp_path, rows=ROWS, parts=2), store, LocalWorkers(1))
    parts = StoredParts(store.parts("letters").places, LocalWorkers(1))
    with pytest.raises(WorkerError, match="FileNotFoundError"):
        parts.summed(countings(public)["centres"])
    labels = replace(parts, with_embeddings=False).summed(BY_LABEL)
    assert labels.sum() > 0


def materialised(spec, public, *, select):
    """Runs shared assets of a cohort in one process, as the web UI does."""
    definitions = dataset_definitions(spec, plan_dataset(spec))
    chosen = [each for each in definitions.assets if each.key.path[-1] in select]
    return run_assets(
        [*public_values("tiny", text_embedder=MANIFEST, public_clusters=public), *chosen]
    )


def test_on_ray_the_tasks_ask_for_gpus_and_not_the_step_that_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_GPU", "nvidia.com/gpu")
    step, gpus = step_of_tasks(model_step("no base of a file", TEXT_EMBEDDER))
    assert step["op_tags"]["dagster-ray/config"] == {"num_gpus": 1}
    assert gpus == 0
    whole, parted = (declared(tmp_path, parts=parts) for parts in (1, 3))
    (stage,) = plan_dataset(parted).methods[0].plan.stages
    assert stage_step(parted, stage)[1] == 0
    monkeypatch.setenv("DPSYNTH_WORKERS", "ray")
    step, gpus = step_of_tasks(model_step("no base of a file", TEXT_EMBEDDER))
    assert (step["op_tags"], gpus) == ({}, 1)
    step, gpus = stage_step(parted, stage)
    assert (step["op_tags"], gpus) == ({}, 1)
    step, gpus = stage_step(whole, stage)
    assert (step["op_tags"]["dagster-ray/config"], gpus) == ({"num_gpus": 1}, 0)


def test_one_part_needs_no_workers(tmp_path):
    definitions = dataset_definitions(declared(tmp_path), plan_dataset(declared(tmp_path)))
    asked = {key for each in definitions.assets for key in each.required_resource_keys}
    assert "workers" not in asked


def test_records_that_lie_whole_are_refused_before_a_charge(tmp_path, store, public):
    spec = declared(tmp_path, rows=ROWS, parts=4)
    result = materialised(spec, public, select={"cluster_histogram"})
    told = failure(result)
    assert "in 4 parts" in told
    assert "Materialise letters/shared/private_records" in told
    assert not PrivacyLedger().open().entries("letters")


def test_every_stage_that_may_be_given_parts_sums_or_draws_over_them(tmp_path):
    """A stage that is marked so and reads `records` would release on nothing: none does."""
    chosen, marked = {"exact_sums": True, "generator": "other", "corpus": "other"}, set()
    for name, kind in REGISTRY.items():
        fields = kind.config_type.model_fields.keys() & chosen
        method = bound_method(name, {field: chosen[field] for field in fields}, made_terms())
        marked |= {(name, stage.name) for stage in method.stages() if stage.in_parts}
    for part in plan_dataset(declared(tmp_path)).shared:
        marked |= {(part.method.name, stage.name) for stage in part.plan.stages if stage.in_parts}
    assert marked == {
        ("cluster_histogram", "cluster_histogram"),
        *((name, "candidate_corpus") for name in NAMES),
        ("aug_pe", "population"),
        ("aug_pe_from_corpus", "population"),
        ("ctcl", "finetuned_generator"),
        ("dp_fine_tuning", "finetuned_generator"),
        ("downstream_fine_tuning", "downstream_model"),
        ("secpe", "secret_clusters"),
        ("epsvec", "fixed_shots"),
        ("epsvec", "dataset_vectors"),
        ("epsvec_on_generator", "fixed_shots"),
    }


# Parts in an object store.

EVERY = {"private_records", "private_embeddings", "cluster_histogram"}


@pytest.fixture
def remote(bucket, store, monkeypatch):
    """The same installation with its sensitive store in a bucket."""
    for name in ("DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL", "DPSYNTH_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DPSYNTH_SENSITIVE_URL", f"{bucket}/private")
    monkeypatch.setenv(KEY_VARIABLE, key(1))
    return SensitiveStore()


@pytest.mark.slow
def test_a_cohort_is_read_embedded_and_released_once(tmp_path, remote, bucket, public):
    spec = declared(tmp_path, rows=ROWS, parts=3)
    result = materialised(spec, public, select=EVERY)
    assert result.success
    kinds = [entry.kind for entry in PrivacyLedger().open().entries("letters")]
    assert kinds.count("reserve") == kinds.count("commit") == 1
    assert materialised(spec, public, select=EVERY).success, "the stored release is used again"
    kinds = [entry.kind for entry in PrivacyLedger().open().entries("letters")]
    assert kinds.count("reserve") == 1
    reads = remote.contributions("letters").reads()
    assert len(reads) == 3
    assert not home().local_sensitive.exists()
    for name in remote.base.fs.find(remote.base.path):
        content = remote.base.fs.cat_file(name)
        assert content.startswith(HEADER), name
        assert SECRET.encode() not in name.encode() + content
    everything = located(bucket).fs.find(bucket)
    assert all("/private/" in name for name in everything)
