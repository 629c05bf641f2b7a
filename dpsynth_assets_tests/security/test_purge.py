"""Purging removes what is private and due, and nothing that was paid for or is still asked."""

import os
import time
from types import SimpleNamespace

import dagster as dg
import pytest
import typer

from dpsynth_assets.cli import purge as command
from dpsynth_assets.orchestration.assets.keys import finished_datasets
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.privacy.ledger.actors import account
from dpsynth_assets.sensitive.purging import PurgeRule, purge, purges_after_success
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.security.conftest import RECORDS
from dpsynth_assets_tests.stored import write_records

OPEN, DONE = SimpleNamespace(id="open"), SimpleNamespace(id="done")


@pytest.fixture
def used(store):
    for reservation in (OPEN, DONE):
        store.checkpoint("letters", reservation).begin()
        kept = store.checkpoint("letters", reservation)
        kept.save(kept.filled(lambda folder: (folder / "state.json").write_text("{}")))
    store.contributions("letters").note("done", RECORDS)
    write_records(store, "memos", "source", RECORDS)
    return store


def is_open(reservation):
    return reservation == "open"


def left(store, dataset="letters"):
    folder = store.base / dataset
    return sorted({path.relative_to(folder).parts[0] for path in folder.rglob("*")})


def test_records_embeddings_and_internal_files_go_and_what_was_paid_for_stays(used):
    purge(used, PurgeRule(dataset="letters"), is_open)
    assert left(used) == ["contributions", "passes"]
    assert used.checkpoint("letters", OPEN).saved is not None
    assert used.checkpoint("letters", DONE).saved is None
    assert left(used, "memos") == ["source.digest", "source.parquet"]


def test_unfinished_work_and_the_contribution_table_go_on_demand(used):
    purge(used, PurgeRule(unfinished=True, contributions=True), is_open)
    assert left(used) == ["passes"]
    assert list((used.base / "letters" / "passes").iterdir()) == []
    assert left(used, "memos") == []


def test_only_what_is_old_enough_goes(used):
    old = used.base / "letters" / "source.parquet"
    then = time.time() - 3 * 86_400
    os.utime(old, (then, then))
    removed = purge(used, PurgeRule(older_than_seconds=86_400), is_open)
    assert removed == [old]
    assert not old.exists()


def test_a_dry_run_removes_nothing(used):
    before = left(used)
    assert purge(used, PurgeRule(dataset="letters"), is_open, dry_run=True)
    assert left(used) == before


@pytest.mark.parametrize(("age", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("0m", 0)])
def test_ages_are_read(age, seconds):
    assert command.seconds_of(age) == seconds


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1.5h", ""])
def test_an_age_that_is_none_is_refused(age):
    with pytest.raises(typer.BadParameter, match="30d, 12h or 45m"):
        command.seconds_of(age)


def test_without_a_ledger_every_charge_counts_as_open(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    assert command.waiting()("anything")


def test_the_command_lists_what_it_removes(used, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    *told, last = dpsynth("purge", "memos", "--dry-run").stdout.splitlines()
    memos = [str(tmp_path / f"sensitive/memos/source.{kind}") for kind in ("digest", "parquet")]
    assert (told, last.split(".")[0]) == (memos, "2 would be removed")
    assert dpsynth("purge", "memos").exit_code == 0
    assert left(used, "memos") == []
    (entry,) = PrivacyLedger().open().entries()
    assert (entry.kind, entry.cohort, entry.actor) == ("purge", "memos", account().name)
    assert dpsynth("purge", "--older-than", "soon").exit_code == 2


@pytest.mark.parametrize(
    "name", ["..", ".", "", "letters/passes", "../released", "/etc", "letters/", ".locks"]
)
def test_a_path_is_no_dataset(used, tmp_path, monkeypatch, name):
    before = left(used)
    with pytest.raises(ValueError, match="Expected the name of a dataset"):
        PurgeRule(dataset=name)
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    dpsynth("purge", name, "--unfinished", code=2)
    assert left(used) == before


def test_a_misspelt_dataset_is_refused_with_a_near_name(used, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    refused = dpsynth("purge", "leters", code=2)
    assert "'letters'" in refused.output
    assert "source.parquet" in left(used)


def test_a_run_finishes_the_cohorts_whose_statement_it_wrote():
    @dg.asset(key=["letters", "audit", "privacy_statement"])
    def statement():
        return None

    @dg.asset(key=["memos", "shared", "private_records"])
    def records():
        return None

    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize([statement, records], instance=instance)
        assert finished_datasets(instance, run.run_id) == ["letters"]


def test_purging_after_success_is_off_until_it_is_switched_on(monkeypatch):
    monkeypatch.delenv("DPSYNTH_PURGE_AFTER_SUCCESS", raising=False)
    assert not purges_after_success()
    monkeypatch.setenv("DPSYNTH_PURGE_AFTER_SUCCESS", "1")
    assert purges_after_success()
