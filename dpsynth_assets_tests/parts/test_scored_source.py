"""Evaluation over parts: the same copies, sample and scores, and never all records at a time."""

import re
import weakref

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.attacks.overlap import HeldRecords
from dpsynth_assets.orchestration.assets import evaluation
from dpsynth_assets.orchestration.assets.scoring import CorpusToScore, score_corpora
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.paths import project_root
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets.sensitive import store as sensitive_store
from dpsynth_assets.sensitive.read_source import store_records
from dpsynth_assets.sensitive.record_parts import SPLITS, read_part
from dpsynth_assets.sensitive.scored_source import sampled_source
from dpsynth_assets.workers import LocalWorkers
from dpsynth_assets_tests.parts.conftest import LABELS, WORDS, declared
from dpsynth_assets_tests.stored import read_table, write_array, write_text

ROWS, WIDTH, PARTS = 240, 8, 5
LONG = "on the morning of the fair nobody had seen the ferry leave its berth at all"


def embedded(texts):
    """Features of a text by itself, as an embedder makes them."""
    rows = [[float(text.count(word)) for word in WORDS] for text in texts]
    moved = np.array(rows, dtype=np.float32).reshape(-1, WIDTH) + 0.1
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """Two stores of the same records: whole, and in parts, which nobody may join."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    made = [SensitiveStore.at(str(tmp_path / name)) for name in ("whole", "parted")]
    for store, parts in zip(made, (1, PARTS), strict=True):
        store_records(declared(tmp_path, rows=ROWS, parts=parts), store, LocalWorkers(1))
        for place in store.parts("letters").places:
            for split in SPLITS:
                texts = read_table(place, f"{split}.parquet")["text"].to_list()
                write_array(place, f"{split}_embeddings.npy", embedded(texts))
                write_text(place, f"{split}_embeddings.version", "v")
    joins = sensitive_store.read_whole

    def joins_held_out_alone(places, split, *, with_embeddings):
        alone = split == "held_out" or len(places) == 1
        assert alone, "source records of all parts were read together"
        return joins(places, split, with_embeddings=with_embeddings)

    monkeypatch.setattr(sensitive_store, "read_whole", joins_held_out_alone)
    return made


@pytest.mark.parametrize("rows", [1, 50, 10_000])
def test_the_sample_is_the_same_in_parts_and_whole(stores, rows):
    whole, parted = (
        sampled_source(store.each_for_scoring("letters", "source"), "letters", rows)
        for store in stores
    )
    everybody = stores[0].read_internal("letters", "source").records
    assert whole.records.height == min(rows, everybody.height)
    assert whole.records.equals(parted.records)
    assert whole.embeddings.tobytes() == parted.embeddings.tobytes()
    assert whole.embeddings.tobytes() == embedded(whole.records["text"]).tobytes()
    assert whole.labels == parted.labels == 2


def test_a_sample_keeps_no_part_alive(stores):
    """What is kept of a part is copied: the arrays of parts that were read are given back."""
    gone = []

    def each():
        for place in stores[1].parts("letters").places:
            some = read_part(place, "source", with_embeddings=True)
            embeddings = np.array(some.embeddings)
            gone.append(weakref.ref(embeddings))
            yield type(some)(records=some.records, embeddings=embeddings)
            del some, embeddings

    sample = sampled_source(each(), "letters", 7)
    assert sample.records.height == len(sample.embeddings) == 7
    assert len(gone) == PARTS
    assert not [1 for reference in gone if reference() is not None]


def test_another_record_is_another_version(stores):
    def version(changed):
        def each():
            for number, place in enumerate(stores[1].parts("letters").places):
                some = read_part(place, "source", with_embeddings=True)
                yield changed(some) if number == 2 else some

        return sampled_source(each(), "letters", 7).version

    def moved(some):
        embeddings = np.array(some.embeddings)
        embeddings[0, 0] += 1e-6
        return type(some)(records=some.records, embeddings=embeddings)

    def labelled(some):
        labels = pl.Series("label", ["other", *some.records["label"][1:]])
        return type(some)(records=some.records.with_columns(labels), embeddings=some.embeddings)

    versions = [version(lambda some: some), version(moved), version(labelled)]
    assert versions[0] == version(lambda some: some)
    assert len(set(versions)) == 3


def with_span(folder, units):
    """A cohort in which some units, of several parts, wrote one long sentence."""
    rows = [
        {"text": f"{WORDS[n % 8]} {n} {LONG if n < units else ''}", "label": LABELS[n % 2]}
        for n in range(60)
    ]
    frame = pl.DataFrame(rows).with_columns(who=pl.Series([f"u{n}" for n in range(60)]))
    name = f"span{units}"
    frame.write_csv(folder / f"{name}.csv")
    return declared(folder, name=name, parts=PARTS, held_out_fraction=0.01)


@pytest.mark.parametrize(("units", "copied"), [(2, True), (30, False)])
def test_a_span_is_held_by_the_units_of_all_parts(tmp_path, store, monkeypatch, units, copied):
    """Thirty units lie in several parts, two at most in each of some: together it is no leak."""
    spec = with_span(tmp_path, units)
    store_records(spec, store, LocalWorkers(1))
    monkeypatch.setattr(sensitive_store, "read_whole", lambda *_, **__: pytest.fail("joined"))
    candidate = pl.DataFrame({"text": [f"so {LONG} indeed", "harmless"]})
    public = pl.DataFrame({"text": ["another text"]})
    found = evaluation._compare(spec.name, candidate, public, store)
    assert found["row"].to_list() == ([0] if copied else [])


class Embedder(OpenedModels):
    def text_embedder(self, manifest):
        return self

    def embed(self, texts, progress=None, *, public=False):
        return embedded(texts)


def test_scores_are_the_same_in_parts_and_whole(tmp_path, stores):
    spec = declared(tmp_path, rows=ROWS, evaluation={"rows": 40, "references": False})
    texts = stores[0].read_internal("letters", "source").records["text"].to_list()
    rows = pl.DataFrame(
        {"text": [*texts[:3], *(f"A {a} by the {b}" for a in WORDS for b in WORDS[:5])]}
    ).with_columns(label=pl.Series([LABELS[n % 2] for n in range(43)]))
    told = {"guarantee": "dp", "epsilon": 1.0, "delta": 1e-6}
    corpus = CorpusToScore("a", rows, "corpus", told)
    whole, parted = (
        [
            entry.scores
            for entry in score_corpora(
                spec, [corpus], {"name": "words"}, Embedder(), store, [], lambda *_: None
            )
        ]
        for store in stores
    )
    assert whole == parted
    assert whole[1]["near_duplicate_share"] > 0
    assert (stores[1].folder("letters") / "scores.json").exists()


def test_records_are_read_without_a_charge_in_the_listed_files_alone():
    reading = re.compile(r"\.(read_internal|read_internal_table|each_for_scoring)\b")
    package = project_root() / "dpsynth_assets"
    found = [path for path in package.rglob("*.py") if reading.search(path.read_text())]
    assert {str(path.relative_to(package)) for path in found} == {
        "orchestration/assets/dataset.py",  # Secrets in a column of values.
        "orchestration/assets/evaluation.py",
        "orchestration/assets/kept_scores.py",
        "orchestration/assets/scoring.py",
        "sensitive/scored_source.py",
    }


def test_closeness_is_a_function_of_the_pair_alone():
    """Pairs within a rounding of the threshold, in any company and at any place."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((40, 96)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    others = draw.standard_normal((1500, 96)).astype(np.float32)
    others -= (others @ rows[0])[:, None] * rows[0]
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    near = (0.95 * rows[0] + (1 - 0.95**2) ** 0.5 * others).astype(np.float32)
    products = near.astype(np.float64) @ rows[0].astype(np.float64)
    cosine = float(np.median(products))  # Within a few roundings of float32 of all of them.
    assert np.abs(products - cosine).max() < 1e-5

    def close(some, rows=rows):
        return HeldRecords(features=some).close_records(rows, cosine)

    whole = close(near)
    assert abs(int(whole[0]) - 750) <= 2
    alone = sum(close(near[n : n + 1]) for n in range(len(near)))
    assert np.array_equal(alone, whole)
    for cut in (1, 7, 1030):
        apart = close(near[:cut]) + close(near[cut:])
        assert np.array_equal(apart, whole)
    assert np.array_equal(close(near[::-1], rows[::-1]), whole[::-1])
    assert np.array_equal(close(near, rows[:1]), whole[:1])
