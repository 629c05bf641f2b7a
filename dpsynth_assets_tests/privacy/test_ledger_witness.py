"""A ledger that was lost, emptied or rolled back is noticed before anything is charged to it."""

import os
import shutil
from pathlib import Path

import pytest

from dpsynth_assets.cli.terminal import described
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.ledger import Ledger, Witness, chain
from dpsynth_assets.privacy.ledger.witness import Seen
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms


@pytest.fixture
def unpaid(tmp_path, monkeypatch):
    """Where a ledger will lie."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    return tmp_path / "ledger" / "ledger.sqlite"


def charge(release):
    ledger = PrivacyLedger().open()
    reservation = ledger.reserve(make_request(release=release), make_terms())
    ledger.commit(reservation, artifact_digest="digest", artifact_uri="uri")
    return ledger


@pytest.fixture
def place(unpaid):
    """Where a ledger of one release lies."""
    charge("1")
    return unpaid


def lost():
    with pytest.raises(LedgerIntegrityError) as raised:
        charge("after the loss")
    said = str(raised.value)
    assert "\n" not in said
    assert "Nothing was charged" in said
    assert "dpsynth ledger restore" in said
    assert described(raised.value) == (said, 2)
    return said


def command(*arguments):
    return dpsynth("ledger", *arguments)


def test_a_deleted_ledger_is_noticed_and_no_new_one_is_made(place):
    place.unlink()
    assert "no file" in lost()
    assert not place.exists()


def test_a_deleted_folder_with_its_checkpoint_is_noticed(place):
    shutil.rmtree(place.parent)
    lost()


def test_an_emptied_ledger_is_noticed(place):
    place.write_bytes(b"")
    assert "a ledger of 0 entries" in lost()


@pytest.mark.parametrize("missing", ["one entry", "one release"])
def test_an_older_copy_is_noticed(place, tmp_path, missing):
    ledger, copy = PrivacyLedger().open(), tmp_path / "older.sqlite"
    if missing == "one entry":
        reservation = ledger.reserve(make_request(release="2"), make_terms())
        shutil.copy(place, copy)
        ledger.commit(reservation, artifact_digest="digest", artifact_uri="uri")
    else:
        shutil.copy(place, copy)
        charge("2")
    shutil.copy(copy, place)
    lost()


def test_another_database_behind_another_url_is_noticed(place, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", f"sqlite:///{tmp_path / 'other.sqlite'}")
    lost()


def test_a_ledger_that_moved_with_its_entries_is_used(place, tmp_path, monkeypatch):
    moved = tmp_path / "moved.sqlite"
    shutil.copy(place, moved)
    monkeypatch.setenv("DPSYNTH_LEDGER_URL", f"sqlite:///{moved}")
    charge("2")


def test_processes_that_append_by_turns_see_no_loss(unpaid):
    first, second = PrivacyLedger().open(), PrivacyLedger().open()
    for number in range(4):
        ledger = (first, second)[number % 2]
        ledger.reserve(make_request(release=str(number)), make_terms(epsilon=1000.0))
        assert first.count_charges() == second.count_charges() == number + 1
        first.head(), second.head()


def test_a_copy_without_gaps_is_restored_and_recorded(place, tmp_path):
    copy = shutil.copy(place, tmp_path / "copy.sqlite")
    place.unlink()
    assert command("restore", copy, "--because", "disk failed", "--yes").exit_code == 0
    entries = charge("2").entries()
    assert [entry.kind for entry in entries[:3]] == ["reserve", "commit", "recovery"]
    assert entries[2].parameters["action"] == "restore"
    assert PrivacyLedger().open().verify().ok
    assert place.stat().st_mode & 0o077 == 0


def test_an_older_copy_is_not_restored(place, tmp_path):
    copy = shutil.copy(place, tmp_path / "copy.sqlite")
    charge("2")
    place.unlink()
    refused = command("restore", copy, "--because", "disk failed", "--yes")
    assert refused.exit_code != 0
    assert not place.exists()


def test_a_loss_is_accepted_by_a_person_alone_and_for_good(place):
    place.unlink()
    assert command("accept", "--because", "no copy exists", "--yes").exit_code == 0
    entries = charge("2").entries()
    assert entries[0].kind == "recovery"
    assert entries[0].parameters["because"] == "no copy exists"
    assert entries[0].parameters["seen"]["seq"] == 2
    assert PrivacyLedger().open().verify().ok


@pytest.mark.parametrize("kept", [0, 2])
def test_stored_releases_witness_where_the_witness_is_lost_too(unpaid, tmp_path, kept):
    """Deleted with the witness, or restored on another machine from an older copy."""
    for number in ("1", "2"):
        (reservation,) = charge(number).entries()[-1:]
        (tmp_path / "artifacts" / "releases" / reservation.reservation).mkdir(parents=True)
        if number == "1":
            copy = shutil.copy(unpaid, tmp_path / "copy.sqlite")
    shutil.rmtree(unpaid.parent)
    shutil.rmtree(tmp_path / "witness")
    if kept:
        unpaid.parent.mkdir()
        shutil.copy(copy, unpaid)
    assert "without those of 1" in lost() if kept else "without those of 2" in lost()
    assert unpaid.exists() == bool(kept)
    refused = command("restore", copy, "--because", "the disk was lost", "--yes")
    assert (refused.exit_code, "Find a newer copy" in refused.output) == (2, True)
    assert command("accept", "--because", "no newer copy exists", "--yes").exit_code == 0
    assert charge("3").verify().ok


def test_nothing_is_accepted_where_nothing_is_missing(place):
    refused = command("accept", "--because", "to be sure", "--yes")
    assert refused.exit_code == 2
    assert "nothing is missing" in refused.output


def test_a_reason_is_needed(place):
    place.unlink()
    assert command("accept", "--because", " ", "--yes").exit_code != 0


def test_verify_names_what_is_missing(place, tmp_path):
    copy = shutil.copy(place, tmp_path / "copy.sqlite")
    charge("2")
    shutil.copy(copy, place)
    shown = command("verify")
    assert shown.exit_code != 0


def test_killed_writers_of_the_witness_leave_one_file_at_most(tmp_path):
    witness, seen = Witness(tmp_path / "w"), Seen(8, "0" * 64, "2026-11-26")
    for _ in range(2):
        if not (child := os.fork()):
            Path.replace = lambda *_: os._exit(9)
            witness.note(seen)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(list((tmp_path / "w").iterdir())) == 2  # One, and the lock.
    witness.note(seen)
    assert {each.name for each in (tmp_path / "w").iterdir()} == {".lock", "ledger.json"}


def test_the_witness_is_for_its_owner_alone(place, tmp_path):
    witness = Witness(tmp_path / "witness")
    assert witness.load().seq == 2
    assert witness.path.stat().st_mode & 0o077 == 0
    assert witness.path.parent.stat().st_mode & 0o077 == 0


def test_labels_say_what_a_person_accepted(place):
    from dpsynth_assets.report.label import cohort_label

    place.unlink()
    assert command("accept", "--because", "no copy exists", "--yes").exit_code == 0
    label = cohort_label(charge("2").entries(), make_request().cohort)
    assert any("no copy exists" in line for line in label["assumptions"])


def test_a_blank_reason_leaves_the_ledger_as_it_is(place, tmp_path):
    copy = shutil.copy(place, tmp_path / "copy.sqlite")
    before = place.read_bytes()
    assert command("restore", copy, "--because", " ", "--yes").exit_code != 0
    assert place.read_bytes() == before


@pytest.mark.parametrize("known", [True, False])
def test_a_whole_ledger_with_more_entries_is_not_replaced(place, tmp_path, monkeypatch, known):
    """Nor where its newest entry is of another version, which this one does not verify."""
    if not known:
        monkeypatch.setattr(chain, "_content_problem", lambda entry, *_: "?" * (entry.seq == 3))
    copy = shutil.copy(place, tmp_path / "copy.sqlite")
    Ledger(f"sqlite:///{place}").reserve(make_request(release="2"), make_terms())  # unseen
    refused = command("restore", copy, "--because", "to be sure", "--yes")
    assert refused.exit_code != 0
    assert "keep it" in refused.output
    assert len(Ledger(f"sqlite:///{place}").entries()) == 3


def test_a_witness_that_cannot_be_read_is_no_missing_witness(place, tmp_path):
    (tmp_path / "witness" / "ledger.json").write_text("{")
    with pytest.raises(LedgerIntegrityError, match="cannot be read"):
        PrivacyLedger().open().head()


def test_an_accepted_loss_leaves_nothing_that_was_verified_before(unpaid, monkeypatch):
    monkeypatch.setattr("dpsynth_assets.privacy.ledger.store.ENTRIES_BETWEEN", 2)
    charge("1").head()
    assert {file.suffix for file in unpaid.parent.glob("verified-*")} == {".json"}
    unpaid.unlink()
    assert command("accept", "--because", "no copy exists", "--yes").exit_code == 0
    assert list(unpaid.parent.glob("verified-*")) == []
