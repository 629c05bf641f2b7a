"""A machine's checkpoint: the same sums as the whole chain, and no say in what auditors read."""

import dataclasses
import hashlib
import json
import random
import sqlite3
import stat

import pytest

from dpsynth_assets.privacy.errors import BudgetExceededError, LedgerIntegrityError
from dpsynth_assets.privacy.events import (
    POST_PROCESSING,
    ComposedEvent,
    GaussianEvent,
    PoissonGaussianEvent,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Checkpoint, Ledger, checkpoint
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.export import history
from dpsynth_assets_tests.privacy.ledger_cases import (
    edit,
    make_request,
    make_terms,
    release,
    sqlite_file,
    sqlite_url,
)

TERMS = make_terms(epsilon=1e6, accepts_ex_post=True)
EVENTS = (
    GaussianEvent(noise_multiplier=3.7),
    PoissonGaussianEvent(noise_multiplier=1.1, sampling_probability=0.01, steps=20),
    ComposedEvent(events=(GaussianEvent(noise_multiplier=9.0),) * 2),
    POST_PROCESSING,
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "ENTRIES_BETWEEN", 4)
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


def replayed(folder):
    book = Book()
    for entry in Ledger(sqlite_url(folder)).stream():
        book.post(entry)
    return book


@pytest.mark.parametrize("seed", range(6))
def test_what_was_kept_is_the_book_of_the_whole_chain_and_goes_on_as_it_does(place, seed):
    fill(opened(place), 25, seed)
    opened(place).head()
    book = kept(place).load()
    assert book is not None
    assert book.seq >= 25
    fill(opened(place), 9, seed + 100)
    ledger = opened(place)
    assert ledger._refreshed() == replayed(place)
    assert ledger.verify().ok


def test_it_is_the_owners_alone_and_small_ledgers_have_none(place):
    release(opened(place))
    opened(place).head()
    assert not kept(place).path.exists()
    fill(opened(place), 9)
    opened(place).head()
    assert stat.S_IMODE(kept(place).path.stat().st_mode) == 0o600


def test_a_step_reads_only_what_is_new(place, monkeypatch):
    fill(opened(place), 20)
    opened(place).head()
    known = kept(place).load().seq
    posted = []
    monkeypatch.setattr(Book, "post", lambda self, entry: posted.append(entry.seq))
    opened(place).head()
    assert posted == list(range(known + 1, known + 1 + len(posted)))
    assert len(posted) < 4


def test_a_ledger_that_was_cut_off_or_replaced_is_refused_and_says_what_to_do(place):
    fill(opened(place), 20)
    opened(place).head()
    assert kept(place).load() is not None
    edit(place, "DELETE FROM privacy_ledger WHERE seq > 6")
    with pytest.raises(LedgerIntegrityError, match=r"replaced or rolled back.*delete .*verified-"):
        opened(place).reserve(make_request(release="x"), TERMS)
    assert not opened(place).verify().ok
    assert Ledger(sqlite_url(place)).verify().ok  # The chain alone cannot show a removed tail.
    sqlite_file(place).unlink()
    with pytest.raises(LedgerIntegrityError):
        opened(place).head()


def forged(folder):
    """A checkpoint that forgets every charge, its digest made anew."""
    path = kept(folder).path
    body = json.loads(path.read_bytes().split(b"\n", 1)[1])
    for account in body["accounts"]:
        account["charges"], account["rho_units"], account["sampled"] = [], "0", {}
    content = json.dumps(body).encode()
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def test_a_forged_one_changes_nothing_that_an_auditor_is_told_and_is_reported(place):
    fill(opened(place), 20)
    opened(place).head()
    truth = Ledger(sqlite_url(place)).spend("tickets").epsilon
    told = history(opened(place))
    forged(place)
    assert Ledger(sqlite_url(place)).spend("tickets").epsilon == truth > 0
    assert history(opened(place)) == told
    (problem,) = opened(place).verify().problems
    assert "the file was altered" in str(problem)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o622),
        lambda path: path.unlink(),
    ],
    ids=["cut", "empty", "others may write", "gone"],
)
def test_a_damaged_one_is_as_none(place, damage):
    fill(opened(place), 20)
    opened(place).head()
    damage(kept(place).path)
    assert kept(place).load() is None
    assert opened(place)._refreshed() == replayed(place)


def test_a_password_of_the_url_is_in_no_name(tmp_path):
    urls = [f"postgresql+psycopg://ledger:{word}@host/ledger" for word in ("one", "two")]
    assert len({Checkpoint(tmp_path, url).path for url in urls}) == 1
    assert Checkpoint(tmp_path, f"{urls[0]}2").path != Checkpoint(tmp_path, urls[0]).path


def test_one_of_another_version_is_as_none(place, monkeypatch):
    fill(opened(place), 20)
    opened(place).head()
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    assert kept(place).load() is None


def test_a_disk_that_takes_none_is_no_failure(place):
    fill(Ledger(sqlite_url(place)), 20)
    (place / "no folder").touch()
    nowhere = Checkpoint(place / "no folder", sqlite_url(place))
    assert Ledger(sqlite_url(place), checkpoint=nowhere)._refreshed() == replayed(place)
    assert nowhere.load() is None


def test_budgets_are_kept_across_checkpoints(place):
    terms = make_terms(epsilon=16.0)
    for number in range(100):
        try:
            release(opened(place), terms, release=str(number))
        except BudgetExceededError:
            break
    spent = Ledger(sqlite_url(place)).spend("tickets").epsilon
    assert 14.0 < spent <= 16.0
    assert kept(place).load() is not None


def test_the_format_is_raised_with_what_accounts_hold():
    """A field more or less is another format: change FORMAT, and these lists."""
    assert checkpoint.FORMAT == 9
    assert [field.name for field in dataclasses.fields(Book)] == [
        "seq", "head", "accounts", "partitions", "reserved", "committed",
        "kept", "_by_key", "_released",
    ]  # fmt: skip
    assert [field.name for field in dataclasses.fields(CohortAccount)] == [
        "cohort", "dataset", "opened", "latest", "spent", "charges", "largest_budget",
        "secret_charges", "secret", "adaptive", "plan_json",
        "public_facts", "reserved", "committed", "has_ex_post", "ex_post",
    ]  # fmt: skip


# Reservations in a file of their own


def reservations(folder):
    return kept(folder).path.with_suffix(".sqlite")


def test_reservations_are_the_owners_alone_and_grow_with_later_checkpoints(place):
    fill(opened(place), 9)
    opened(place).head()
    assert stat.S_IMODE(reservations(place).stat().st_mode) == 0o600
    first = kept(place).load().kept.reserved
    for seed in range(1, 4):
        fill(opened(place), 9, seed)
    opened(place).head()
    book = kept(place).load()
    assert book.kept.reserved > first
    assert opened(place)._refreshed() == replayed(place)


def test_every_look_up_says_what_the_whole_chain_says(place):
    asked = [make_request(release=str(number)) for number in range(12)]
    for request in asked:
        reservation = opened(place).reserve(request, TERMS)
        if int(request.release) % 3:
            opened(place).commit(reservation, artifact_digest="d", artifact_uri=request.release)
    opened(place).head()
    ledger, whole = opened(place), Ledger(sqlite_url(place))
    assert ledger._book.kept.reserved >= 10
    for request in asked:
        assert ledger.pending(request) == whole.pending(request)
        again = ledger.preview(request, TERMS)
        assert again == whole.preview(request, TERMS)
        assert again.reused is bool(int(request.release) % 3)
    for name in replayed(place).reserved:
        assert ledger.is_open(name) == whole.is_open(name)
        assert ledger.sealed_digest(name) == whole.sealed_digest(name)
    assert not ledger.is_open("ab" * 16)


@pytest.mark.parametrize("damage", ["gone", "cut", "older"])
def test_without_its_reservations_a_checkpoint_is_none(place, damage):
    fill(opened(place), 9)
    opened(place).head()
    older = reservations(place).read_bytes()
    fill(opened(place), 20, seed=1)
    opened(place).head()
    if damage == "gone":
        reservations(place).unlink()
    else:
        reservations(place).write_bytes(older if damage == "older" else older[:100])
    assert kept(place).load() is None
    assert opened(place)._refreshed() == replayed(place)
    assert kept(place).load() is not None


def test_a_reservation_that_was_altered_in_the_file_is_reported(place):
    fill(opened(place), 20)
    opened(place).head()
    assert opened(place).verify().ok
    connection = sqlite3.connect(reservations(place))
    with connection:
        connection.execute("UPDATE kept SET digest = 'another' WHERE digest = 'd'")
    connection.close()
    report = opened(place).verify()
    assert not report.ok
    assert "checkpoint" in str(report.problems[0])


# What a killed process left in the file, and a rollback


def after_a_lost_end(folder, lose):
    """A rolled back ledger, with rows of what was lost in the file: the JSON was not replaced."""
    for number in range(4):
        release(opened(folder), TERMS, release=f"kept {number}")
    opened(folder).head()
    earlier = kept(folder).path.read_bytes(), sqlite_file(folder).read_bytes()
    lose()
    opened(folder).head()
    kept(folder).path.write_bytes(earlier[0])
    sqlite_file(folder).write_bytes(earlier[1])
    for number in range(4):
        release(opened(folder), TERMS, release=f"new {number}")
    opened(folder).head()


def test_a_release_that_was_lost_is_not_reused_after_a_rollback(place):
    lost = [make_request(release=f"lost {number}") for number in range(4)]
    after_a_lost_end(
        place, lambda: [release(opened(place), TERMS, release=each.release) for each in lost]
    )
    assert opened(place).verify().ok
    for request in lost:
        assert not opened(place).preview(request, TERMS).reused
        assert not opened(place).reserve(request, TERMS).reused


def test_a_charge_that_was_lost_opens_nothing_after_a_rollback(place):
    lost = []

    def lose():
        asked = [make_request(release=f"lost {number}") for number in range(6)]
        lost.extend(opened(place).reserve(request, TERMS) for request in asked)

    after_a_lost_end(place, lose)
    assert opened(place).verify().ok
    for reservation in lost:
        assert opened(place).pending(reservation.request) == []
        assert not opened(place).is_open(reservation.id)


def test_a_commit_that_was_lost_is_none_after_a_rollback(place):
    fill(opened(place), 9)
    paid = opened(place).reserve(make_request(release="paid"), TERMS)
    after_a_lost_end(
        place,
        lambda: [
            opened(place).commit(paid, artifact_digest="d", artifact_uri="u"),
            *(release(opened(place), TERMS, release=f"lost {number}") for number in range(3)),
        ],
    )
    assert opened(place).verify().ok
    assert opened(place).is_open(paid.id)
    assert opened(place).sealed_digest(paid.id) is None
    assert [each.id for each in opened(place).pending(paid.request)] == [paid.id]
    assert not opened(place).preview(paid.request, TERMS).reused


@pytest.mark.parametrize("committed", [None, 1], ids=["charge", "release"])
def test_a_row_without_an_entry_of_the_ledger_is_no_charge(place, committed):
    fill(opened(place), 20)
    opened(place).head()
    request, name = make_request(release="planted"), "ab" * 16
    key = request.key(TERMS.relation, TERMS.unit)
    connection = sqlite3.connect(reservations(place))
    with connection:
        row = (name, key, 1, committed, "d", "u")
        connection.execute("INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()
    ledger = opened(place)
    assert ledger._book.kept is not None
    assert not ledger.is_open(name)
    assert ledger.pending(request) == []
    assert ledger.sealed_digest(name) is None
    assert not ledger.reserve(request, TERMS).reused
