"""Laws of publication: it reads no private record, and the steward alone is told of copies.

About 12 s of CPU.
"""

import json

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.corpora import corpus_asset, corpus_asset_checks
from dpsynth_assets.orchestration.assets.evaluation import copied_spans_asset, spans_table
from dpsynth_assets.orchestration.checks import GATE, PAID_FOR
from dpsynth_assets.orchestration.resources.stores import (
    PrivacyLedger,
    ReleaseStore,
    SensitiveStore,
)
from dpsynth_assets.report.cards import released_rows_path
from dpsynth_assets_tests.assets.declared_cases import letters
from dpsynth_assets_tests.privacy.ledger_cases import sqlite_url
from dpsynth_assets_tests.stored import write_records

SECRET = "my claim number was lost by the clinic and nobody ever called me back about it"
OTHERS = [f"an ordinary letter number {i} about trains and delays in the city" for i in range(40)]
PUBLIC = pl.DataFrame({"text": ["mild weather and a calm sea"]})


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", sqlite_url(tmp_path))
    texts = [*OTHERS, f"hello, {SECRET}, regards"]
    ids = [str(number) for number in range(len(texts))]
    table = {"record_id": ids, "unit_id": ids, "text": texts, "label": ["a"] * len(texts)}
    write_records(SensitiveStore(), "letters", "source", pl.DataFrame(table))
    return tmp_path / "home"


SPEC = letters(columns={"labels": ["label"]}, public_facts={"labels": {"label": ["a", "b"]}})


@pytest.fixture
def plan():
    return plan_dataset(SPEC)


def candidate(ledger, plan, texts, release="first", inputs=None):
    """A paid candidate of these texts."""
    (planned,) = plan.methods
    made_from = {"public_language_model": "m", **(inputs or {})}
    (stage,) = planned.plan.stages
    request = stage_request(SPEC, planned, stage, release=release, inputs=made_from)
    reservation = ledger.reserve(request, plan.budget)
    rows = pl.DataFrame({"text": texts, "label": ["a"] * len(texts)})
    if not reservation.reused:
        digest, place = ReleaseStore().save(reservation.id, {}, rows)
        ledger.commit(reservation, artifact_digest=digest, artifact_uri=place)
    return rows.with_columns(pl.lit(reservation.id).alias("reservation"))


def publish(plan, rows):
    return corpus_asset(SPEC, plan, plan.methods[0])(
        dg.build_asset_context(), rows, ledger=PrivacyLedger(), release_store=ReleaseStore()
    )


def outcomes(plan, rows):
    """Results of the gate's checks, as a run makes them."""
    gate, *_ = corpus_asset_checks(SPEC, plan.budget, plan.methods[0])
    results = gate(rows, ledger=PrivacyLedger(), release_store=ReleaseStore())
    return {result.check_name: result.passed for result in results}


def _names(checks):
    return {key.name for key in checks.check_keys}


def warn(plan, rows):
    """What the internal comparison tells: its check, its metadata, and the table it keeps."""
    asset = copied_spans_asset(SPEC, plan.methods[0])
    told = asset(candidate_corpus=rows, public_corpus=PUBLIC, sensitive_store=SensitiveStore())
    table = SensitiveStore().read_internal_table("letters", spans_table("mean_uniform"))
    return told, table


def test_a_candidate_that_copies_a_record_is_published_and_the_steward_is_told(ledger, home, plan):
    rows = candidate(ledger, plan, ["a calm letter", f"well, {SECRET} again"])
    assert outcomes(plan, rows) == dict.fromkeys(GATE, True)
    publish(plan, rows)
    assert released_rows_path("letters", "mean_uniform").exists()
    told, table = warn(plan, rows)
    (result,) = told.check_results
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert table.rows() == [(1, SECRET)]
    assert "claim" not in json.dumps({name: str(value) for name, value in told.metadata.items()})
    assert [entry.kind for entry in ledger.entries()] == ["reserve", "commit"]


def test_where_nothing_is_copied_the_steward_is_told_so(ledger, plan):
    told, table = warn(plan, candidate(ledger, plan, ["a calm letter"]))
    assert told.check_results[0].passed
    assert table.is_empty()
    assert table.columns == ["row", "words"]


def test_spans_that_overlap_are_one_and_texts_are_kept_apart(ledger, plan):
    cut = " ".join(SECRET.split()[:13])
    rows = candidate(ledger, plan, [f"{SECRET}. And more: {cut}.", cut, "calm"])
    _, table = warn(plan, rows)
    assert table.rows() == [(0, SECRET), (0, cut), (1, cut)]


@pytest.mark.parametrize("text", ["a calm letter", SECRET, " "])
def test_in_one_run_the_corpus_follows_the_gate(ledger, text, plan):
    rows = candidate(ledger, plan, [text])
    checks = corpus_asset_checks(SPEC, plan.budget, plan.methods[0])
    gates = [each for each in checks if _names(each) & {*GATE}]
    run = dg.materialize(
        [
            _made(dg.AssetKey(["letters", "mean_uniform", "candidate_corpus"]), rows),
            *gates,
            corpus_asset(SPEC, plan, plan.methods[0]),
        ],
        resources={"ledger": PrivacyLedger(), "release_store": ReleaseStore()},
        raise_on_error=False,
    )
    held = not text.strip()
    assert released_rows_path("letters", "mean_uniform").exists() is not held
    assert run.success is not held


# What is published is what was paid for


def _text_edited(rows, _):
    return rows.with_columns(text=pl.lit("a letter that nobody paid for"))


def _label_edited(rows, _):
    return rows.with_columns(label=pl.lit("b"))


def _row_added(rows, _):
    return pl.concat([rows, rows])


def _of_no_charge(rows, _):
    return rows.with_columns(reservation=pl.lit("0" * 32))


def _store_edited(rows, store):
    path = store.folder(rows["reservation"][0]) / "rows.parquet"
    _text_edited(rows, None).drop("reservation").write_parquet(path)
    return _text_edited(rows, None)


@pytest.mark.parametrize(
    "forge", [_text_edited, _label_edited, _row_added, _of_no_charge, _store_edited]
)
def test_rows_that_are_not_those_that_were_paid_for_are_not_published(ledger, forge, plan):
    rows = forge(candidate(ledger, plan, ["a calm letter"]), ReleaseStore())
    assert [name for name, passed in outcomes(plan, rows).items() if not passed] == [PAID_FOR]
    with pytest.raises(dg.Failure, match=PAID_FOR):
        publish(plan, rows)
    assert not released_rows_path("letters", "mean_uniform").exists()


def test_rows_made_from_a_release_of_another_ledger_are_not_published(ledger, plan):
    elsewhere = "ab" * 16
    rows = candidate(ledger, plan, ["a calm letter"], inputs={"cluster_histogram": elsewhere})
    with pytest.raises(dg.Failure, match=f"Expected the release {elsewhere}"):
        publish(plan, rows)


def test_a_published_row_that_was_edited_fails_the_check_of_the_card(ledger, plan):
    publish(plan, candidate(ledger, plan, ["a calm letter"]))
    (card,) = (
        each
        for each in corpus_asset_checks(SPEC, plan.budget, plan.methods[0])
        if "card_equals_ledger" in _names(each)
    )
    resources = {"ledger": PrivacyLedger(), "release_store": ReleaseStore()}
    assert card(**resources).passed
    path = released_rows_path("letters", "mean_uniform")
    pl.read_parquet(path).with_columns(text=pl.lit("another")).write_parquet(path)
    assert not card(**resources).passed


def test_a_corpus_keeps_its_data_version_until_other_rows_are_published(ledger, plan):
    first = candidate(ledger, plan, ["a calm letter"])
    versions = [publish(plan, first).data_version for _ in range(2)]
    other = candidate(ledger, plan, ["another letter"], release="second")
    assert versions[0] == versions[1] != publish(plan, other).data_version


def _made(key, value):
    @dg.asset(key=key)
    def made():
        return value

    return made
