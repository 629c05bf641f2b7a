"""A machine's checkpoint: the same sums as the whole chain, and no say in what auditors read."""

import dataclasses
import hashlib
import json
import random
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
from dpsynth_assets.privacy.ledger import Checkpoint, Ledger, witness
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
def filled(place):
    """Where a ledger of twenty requests lies, and what was kept of it."""
    fill(opened(place), 20)
    opened(place).head()
    return place


def replayed(folder):
    book = Book()
    for entry in Ledger(sqlite_url(folder)).stream():
        book.post(entry)
    return book


@pytest.mark.parametrize("seed", range(3))
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


def forged(folder):
    """A checkpoint that forgets every charge, its digest made anew."""
    path = kept(folder).path
    body = json.loads(path.read_bytes().split(b"\n", 1)[1])
    for account in body["accounts"]:
        account["charges"], account["spent"] = [], ["0", {}]
    content = json.dumps(body).encode()
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def test_a_forged_one_changes_nothing_that_an_auditor_is_told_and_is_reported(filled):
    truth = Ledger(sqlite_url(filled)).spend("tickets").epsilon
    told = history(opened(filled))
    forged(filled)
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
    ],
    ids=["cut", "empty", "others may write", "gone"],
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
    assert witness.CHECKPOINT_FORMAT == 14
    assert [field.name for field in dataclasses.fields(Book)] == [
        "seq", "head", "accounts", "partitions", "approvals",
    ]  # fmt: skip
    assert [field.name for field in dataclasses.fields(CohortAccount)] == [
        "cohort", "dataset", "opened", "latest", "spent", "charges", "largest_budget",
        "secret_charges", "secret", "adaptive", "plan_json",
        "public_facts", "reserved", "committed", "has_ex_post", "ex_post",
    ]  # fmt: skip


def test_every_look_up_says_what_the_whole_chain_says(place):
    asked = [make_request(release=str(number)) for number in range(12)]
    for request in asked:
        reservation = opened(place).reserve(request, TERMS)
        if int(request.release) % 3:
            opened(place).commit(reservation, artifact_digest="d", artifact_uri=request.release)
    opened(place).head()
    ledger, whole = opened(place), Ledger(sqlite_url(place))
    assert kept(place).load().seq >= 10
    for request in asked:
        assert ledger.pending(request) == whole.pending(request)
        again = ledger.preview(request, TERMS)
        assert again == whole.preview(request, TERMS)
        assert again.reused is bool(int(request.release) % 3)
    for name in {entry.reservation for entry in whole.entries()}:
        assert ledger.is_open(name) == whole.is_open(name)
        assert ledger.sealed_digest(name) == whole.sealed_digest(name)
    assert not ledger.is_open("ab" * 16)


# A rollback


def test_what_was_lost_is_neither_reused_nor_open_after_a_rollback(place):
    fill(opened(place), 9)
    paid = opened(place).reserve(make_request(release="paid"), TERMS)
    opened(place).head()
    before = kept(place).path.read_bytes(), sqlite_file(place).read_bytes()
    opened(place).commit(paid, artifact_digest="d", artifact_uri="u")
    release(opened(place), TERMS, release="lost")
    charged = opened(place).reserve(make_request(release="charged"), TERMS)
    opened(place).head()
    kept(place).path.write_bytes(before[0])
    sqlite_file(place).write_bytes(before[1])
    fill(opened(place), 9, seed=1)
    ledger = opened(place)
    ledger.head()
    assert ledger.verify().ok
    assert (ledger.is_open(paid.id), ledger.sealed_digest(paid.id)) == (True, None)
    assert [each.id for each in ledger.pending(paid.request)] == [paid.id]
    assert not ledger.is_open(charged.id)
    for request in (make_request(release="lost"), paid.request, charged.request):
        assert not ledger.reserve(request, TERMS).reused


@pytest.mark.parametrize("column", ["artifact_digest", "key"])
def test_an_altered_entry_behind_the_checkpoint_is_refused_where_it_is_looked_up(place, column):
    name = release(opened(place), TERMS)
    fill(opened(place), 20)
    opened(place).head()
    edit(place, f"UPDATE privacy_ledger SET {column} = 'another' WHERE reservation = '{name}'")
    ledger = opened(place)
    for look in (ledger.is_open, ledger.charge, ledger.sealed_digest):
        with pytest.raises(LedgerIntegrityError, match="a column was altered"):
            look(name)
    assert not ledger.verify().ok
