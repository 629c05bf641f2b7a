"""A ledger that was lost or rolled back is noticed; what was verified is kept, and is no proof."""

import hashlib
import json
import os
import random
import shutil
import stat
from pathlib import Path

import pytest

from dpsynth_assets.cli.terminal import described
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.privacy.errors import LedgerIntegrityError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    GaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Checkpoint, Ledger, Witness, chain, witness
from dpsynth_assets.privacy.ledger.accounts import Book
from dpsynth_assets.privacy.ledger.export import history
from dpsynth_assets.privacy.ledger.witness import Seen
from dpsynth_assets.report.label import cohort_label
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.privacy.ledger_cases import (
    edit,
    make_request,
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)


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


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (lambda place: place.unlink(), "no file"),
        (lambda place: shutil.rmtree(place.parent), "no file"),
        (lambda place: place.write_bytes(b""), "a ledger of 0 entries"),
    ],
    ids=["file deleted", "folder deleted, with its checkpoint", "emptied"],
)
def test_a_lost_ledger_is_noticed_and_no_new_one_is_made(place, lose, said):
    lose(place)
    before = place.exists()
    assert said in lost()
    assert place.exists() == before


def test_an_older_copy_is_noticed(place, tmp_path):
    """Of one entry less."""
    ledger, copy = PrivacyLedger().open(), tmp_path / "older.sqlite"
    reservation = ledger.reserve(make_request(release="2"), make_terms())
    shutil.copy(place, copy)
    ledger.commit(reservation, artifact_digest="digest", artifact_uri="uri")
    shutil.copy(copy, place)
    lost()
    assert command("verify").exit_code != 0


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
    label = cohort_label(entries, make_request().cohort)
    assert any("no copy exists" in line for line in label["assumptions"])


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


def test_a_reason_is_needed(place, tmp_path):
    copy = shutil.copy(place, tmp_path / "copy.sqlite")
    place.unlink()
    for arguments in (["accept"], ["restore", copy]):
        assert command(*arguments, "--because", " ", "--yes").exit_code != 0
        assert not place.exists()


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


# The checkpoint: the same sums as the whole chain, and no say in what auditors read

TERMS = make_terms(epsilon=1e6, accepts_ex_post=True)
EVENTS = (
    GaussianEvent(noise_multiplier=3.7),
    PoissonGaussianEvent(noise_multiplier=1.1, sampling_probability=0.01, steps=20),
    ComposedEvent(events=(GaussianEvent(noise_multiplier=9.0),) * 2),
    POST_PROCESSING,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a ledger lies of which every four entries are kept."""
    monkeypatch.setattr(witness, "ENTRIES_BETWEEN", 4)
    monkeypatch.setattr("dpsynth_assets.privacy.ledger.store.ENTRIES_BETWEEN", 4)
    return tmp_path


def kept(folder):
    return Checkpoint(folder / "ledger", sqlite_url(folder))


def opened(folder):
    """What a step of this machine opens."""
    return Ledger(sqlite_url(folder), checkpoint=kept(folder))


def fill(ledger, count, seed=0):
    draw = random.Random(seed)
    for number in range(count):
        ex_post = draw.random() < 0.2
        request = make_request(
            cohort=draw.choice(["tickets", "letters"]),
            asset=draw.choice(["a/b/c", "a/b/d"]),
            release=f"{seed}.{number}",
            guarantee=GuaranteeType.EX_POST if ex_post else GuaranteeType.DP,
            event=None if ex_post else draw.choice(EVENTS),
        )
        reservation = ledger.reserve(request, TERMS)
        if draw.random() < 0.8:
            bound = draw.choice([None, 1.25]) if ex_post else None
            ledger.commit(reservation, artifact_digest="d", artifact_uri="u", ex_post_epsilon=bound)


@pytest.fixture
def filled(folder):
    """Where a ledger of twenty requests lies, and what was kept of it."""
    fill(opened(folder), 20)
    opened(folder).head()
    return folder


def replayed(folder):
    book = Book()
    for entry in Ledger(sqlite_url(folder)).stream():
        book.post(entry)
    return book


@pytest.mark.parametrize("seed", range(3))
def test_what_was_kept_is_the_book_of_the_whole_chain_and_goes_on_as_it_does(folder, seed):
    fill(opened(folder), 25, seed)
    opened(folder).head()
    book = kept(folder).load()
    assert book is not None
    assert book.seq >= 25
    fill(opened(folder), 9, seed + 100)
    ledger = opened(folder)
    assert ledger._refreshed() == replayed(folder)
    assert ledger.verify().ok


def test_it_is_the_owners_alone_and_small_ledgers_have_none(folder):
    release(opened(folder))
    opened(folder).head()
    assert not kept(folder).path.exists()
    fill(opened(folder), 9)
    opened(folder).head()
    assert stat.S_IMODE(kept(folder).path.stat().st_mode) == 0o600


def test_a_step_reads_only_what_is_new(filled, monkeypatch):
    known = kept(filled).load().seq
    posted = []
    monkeypatch.setattr(Book, "post", lambda self, entry: posted.append(entry.seq))
    opened(filled).head()
    assert posted == list(range(known + 1, known + 1 + len(posted)))
    assert len(posted) < 4


def test_a_ledger_that_was_cut_off_or_replaced_is_refused_and_says_what_to_do(filled):
    assert kept(filled).load() is not None
    edit(filled, "DELETE FROM privacy_ledger WHERE seq > 6")
    with pytest.raises(LedgerIntegrityError, match=r"replaced or rolled back.*delete .*verified-"):
        opened(filled).reserve(make_request(release="x"), TERMS)
    assert not opened(filled).verify().ok
    assert Ledger(sqlite_url(filled)).verify().ok  # The chain alone cannot show a removed tail.
    sqlite_file(filled).unlink()
    with pytest.raises(LedgerIntegrityError):
        opened(filled).head()


def rewrite(path, edit_account):
    """Edits every account of a checkpoint, and makes its digest anew."""
    body = json.loads(path.read_bytes().split(b"\n", 1)[1])
    for account in body["accounts"]:
        edit_account(account)
    content = json.dumps(body).encode()
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def forget_charges(account):
    account["charges"], account["spent"] = [], ["0", {}]


def test_a_forged_one_changes_nothing_that_an_auditor_is_told_and_is_reported(filled):
    truth = Ledger(sqlite_url(filled)).spend("tickets").epsilon
    told = history(opened(filled))
    rewrite(kept(filled).path, forget_charges)
    assert Ledger(sqlite_url(filled)).spend("tickets").epsilon == truth > 0
    assert history(opened(filled)) == told
    (problem,) = opened(filled).verify().problems
    assert "the file was altered" in str(problem)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o622),
        lambda path: path.unlink(),
        lambda path: rewrite(path, lambda account: account.pop("has_ex_post")),
    ],
    ids=["cut", "empty", "others may write", "gone", "without a field"],
)
def test_a_damaged_one_is_as_none(filled, damage):
    damage(kept(filled).path)
    assert kept(filled).load() is None
    assert opened(filled)._refreshed() == replayed(filled)


def test_a_password_of_the_url_is_in_no_name(tmp_path):
    urls = [f"postgresql+psycopg2://ledger:{word}@host/ledger" for word in ("one", "two")]
    assert len({Checkpoint(tmp_path, url).path for url in urls}) == 1
    assert Checkpoint(tmp_path, f"{urls[0]}2").path != Checkpoint(tmp_path, urls[0]).path


def test_one_of_another_version_is_as_none(filled, monkeypatch):
    monkeypatch.setattr(witness, "CHECKPOINT_FORMAT", witness.CHECKPOINT_FORMAT + 1)
    assert kept(filled).load() is None


def test_a_disk_that_takes_none_is_no_failure(folder):
    fill(Ledger(sqlite_url(folder)), 20)
    (folder / "no folder").touch()
    nowhere = Checkpoint(folder / "no folder", sqlite_url(folder))
    assert Ledger(sqlite_url(folder), checkpoint=nowhere)._refreshed() == replayed(folder)
    assert nowhere.load() is None


def test_every_look_up_says_what_the_whole_chain_says(folder):
    asked = [make_request(release=str(number)) for number in range(12)]
    for request in asked:
        reservation = opened(folder).reserve(request, TERMS)
        if int(request.release) % 3:
            opened(folder).commit(reservation, artifact_digest="d", artifact_uri=request.release)
    opened(folder).head()
    ledger, whole = opened(folder), Ledger(sqlite_url(folder))
    assert kept(folder).load().seq >= 10
    for request in asked:
        assert ledger.pending(request) == whole.pending(request)
        again = ledger.preview(request, TERMS)
        assert again == whole.preview(request, TERMS)
        assert again.reused is bool(int(request.release) % 3)
    for name in {entry.reservation for entry in whole.entries()}:
        assert ledger.is_open(name) == whole.is_open(name)
        assert ledger.sealed_digest(name) == whole.sealed_digest(name)
    assert not ledger.is_open("ab" * 16)


@pytest.mark.parametrize("column", ["artifact_digest", "key"])
def test_an_altered_entry_behind_the_checkpoint_is_refused_where_it_is_looked_up(folder, column):
    name = release(opened(folder), TERMS)
    fill(opened(folder), 20)
    opened(folder).head()
    edit(folder, f"UPDATE privacy_ledger SET {column} = 'another' WHERE reservation = '{name}'")
    ledger = opened(folder)
    for look in (ledger.is_open, ledger.charge, ledger.sealed_digest):
        with pytest.raises(LedgerIntegrityError, match="a column was altered"):
            look(name)
    assert not ledger.verify().ok
