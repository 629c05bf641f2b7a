"""Corpora of a cohort are scored on one number of rows, which is public, and compared by it."""

import json

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.inputs import silent
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.scoring import (
    CorpusToScore,
    compared_rows_sentence,
    evaluation_settings,
    report_table,
    score_corpora,
    write_report,
)
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets_tests.end_to_end.conftest import private_spec
from dpsynth_assets_tests.stored import write_embeddings, write_records

LABELS = ("billing", "delivery")
PRIVATE = "kayak"
CEILING = "copied from a real record"


@pytest.fixture
def spec(tmp_path, own_home):
    return private_spec(
        tmp_path,
        public_facts={"labels": {"label": list(LABELS)}, "records": 100},
        evaluation={"rows": 150, "reference_rows": 130},
        schedule=None,
    )


def _rows(count, text="synthetic letter"):
    labels = [LABELS[i % 2] for i in range(count)]
    return pl.DataFrame(
        {"text": [f"{text} {i} {labels[i]}" for i in range(count)], "label": labels}
    )


def _corpus(name, count, role="corpus", **parts):
    given = {"guarantee": "dp", "epsilon": 1.0, "delta": 1e-6}
    rows = _rows(count, parts.pop("text", f"written by {name}"))
    return CorpusToScore(name, rows, role, {**given, **parts})


class Embedder(OpenedModels):
    """Embeds a text by its label and by how far its corpus is from real text."""

    opened = 0

    def text_embedder(self, manifest):
        Embedder.opened += 1
        return self

    def embed(self, texts, progress=None, *, public=False):
        return embedded(texts, 3.0 if "by floor" in texts[0] else 0.5)


def embedded(texts, away):
    place = np.array([[4.0 * ("delivery" in text), away] for text in texts])
    noise = np.random.default_rng(len(texts)).normal(size=(len(texts), 6))
    return np.hstack([place, noise]).astype(np.float32)


def store_of(held_out):
    """As many private records as asked for."""
    store = SensitiveStore.at(str(home().sensitive))
    for split, count in (("source", 200), ("held_out", held_out)):
        rows = _rows(count, f"{PRIVATE} {split}").with_row_index("unit_id")
        number = pl.col("unit_id").cast(pl.String)
        named = rows.with_columns(number, record_id=number)
        write_records(store, "letters", split, named)
        write_embeddings(store, "letters", split, embedded(rows["text"].to_list(), 0.0))
    return store


@pytest.fixture
def corpora():
    return [
        _corpus("floor", 130, "floor", epsilon=0.0),
        _corpus("non-private", 128, "ceiling", guarantee="none", text=CEILING),
        _corpus("a", 140),
        _corpus("b", 600),
    ]


def _scored(spec, corpora, held_out=160):
    store, manifest = store_of(held_out), {"name": "made up"}
    return score_corpora(spec, corpora, manifest, Embedder(), store, [], silent)


def test_scores_that_still_hold_are_read_back_without_a_model(spec, corpora, monkeypatch):
    monkeypatch.setattr(Embedder, "opened", 0)
    first = report_table(_scored(spec, corpora))
    assert report_table(_scored(spec, corpora)) == first
    assert Embedder.opened == 1
    corpora[2] = _corpus("a", 140, text="written anew")
    other = {row["name"]: row for row in report_table(_scored(spec, corpora))}
    assert Embedder.opened == 2
    changed = [row["name"] for row in first if row != other[row["name"]]]
    assert changed == ["a"]
    assert report_table(_scored(spec, corpora, held_out=161)) != list(other.values())


def test_all_corpora_are_scored_on_the_smallest_number_asked_of_any(spec, corpora):
    scored = _scored(spec, corpora)
    by_name = {entry.corpus.name: entry.scores.rows for entry in scored if entry.corpus}
    assert (by_name["floor"], by_name["a"], by_name["b"]) == (130, 130, 130)
    assert scored[0].scores.rows == 130  # real data
    small = [*corpora, _corpus("small", 40)]
    assert {entry.scores.rows for entry in _scored(spec, small)} == {40}
    assert compared_rows_sentence(spec, small) == (
        "Every corpus is scored on 40 rows, the smallest number, that of small; MAUVE needs "
        "at least 100 rows and 100 held-out records."
    )


def test_the_number_of_rows_depends_on_no_private_count(spec, corpora):
    """Neither the held-out records nor what the private ceiling left of its rows decide it."""
    numbers = set()
    for rows in (120, 128, 130):
        corpora[1] = _corpus("non-private", rows, "ceiling", guarantee="none")
        numbers.add(evaluation_settings(spec, corpora).max_rows)
    assert numbers == {130}
    for held_out in (90, 160):
        rows = {entry.scores.rows for entry in _scored(spec, corpora[2:], held_out)}
        assert rows == {140}


def test_a_corpus_of_no_rows_takes_none_from_the_others(spec, corpora):
    settings = evaluation_settings(spec, [*corpora, _corpus("refused", 0)])
    assert settings.max_rows == 130


def test_mauve_is_left_out_under_a_hundred_rows_a_side(spec, corpora):
    pytest.importorskip("mauve")
    for held_out, shown in ((99, False), (100, True)):
        scores = [entry.scores for entry in _scored(spec, corpora[2:3], held_out)]
        assert all((score["mauve"] is not None) == shown for score in scores)


def test_the_table_has_intervals_of_the_gap_and_plain_values(spec, corpora):
    rows = {row["name"]: row for row in report_table(_scored(spec, corpora))}
    json.dumps(rows)
    share = rows["a"]
    low, high = (share[f"gap_closed_energy_distance_{end}"] for end in ("low", "high"))
    assert low < share["gap_closed_energy_distance"] < high
    assert low > 0.5
    assert "gap_closed_mauve" not in rows["floor"]
    assert share["scored_rows"] == 130


def test_the_report_says_what_is_decided_and_shows_no_row_of_the_ceiling(spec, corpora, tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger' / 'ledger.sqlite'}")
    scored = _scored(spec, corpora)
    drawn = {"batch_costs": b"private numbers"}
    metadata = write_report(
        spec, plan_dataset(spec), scored, ledger, "embedder", corpora, of_methods=drawn
    )
    folder = tmp_path / "home" / "reports" / spec.name
    told = json.loads((folder / "metrics.json").read_text())["verdicts"]
    assert told[0].startswith("Of the private corpora, ")
    assert told[-1].startswith("Every corpus is scored on 130 rows")
    assert any(line.startswith("By energy distance: ") and "than floor" in line for line in told)
    assert "By energy distance: " in metadata["dpsynth/verdicts"].value
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text()
        assert "written by a 0 billing" in page
        assert CEILING not in page
        assert PRIVATE not in page
        assert "Ex-post cost of each batch" in page
    assert PRIVATE not in repr(metadata) + json.dumps(told)
    assert "batch" not in repr(metadata)
