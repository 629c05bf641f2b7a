"""One run at a time draws a release, and one charge pays for one value."""

import threading

import pytest
from sqlalchemy import make_url

from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.privacy.guarantees import Cost, Release
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.waiting import alone
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url
from dpsynth_assets_tests.stored import release_once


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """Where the lock is kept: a file, or the ledger's server."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    if request.param == "server":
        return request.getfixturevalue("postgres_url")
    return sqlite_url(tmp_path)


@pytest.mark.parametrize("place", ["file", "server"], indirect=True)
def test_a_second_holder_waits_and_says_so_and_another_key_does_not(place):
    order, waits = [], threading.Event()

    def second():
        with alone("key", place, waits.set):
            order.append("second")

    with alone("key", place, lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        with alone("another key", place, lambda: order.append("waited for another key")):
            order.append("another")
        order.append("first")
    thread.join(30)
    assert order == ["another", "first", "second"]


def test_a_ledger_that_is_named_by_a_link_has_the_same_locks(tmp_path):
    Ledger(sqlite_url(tmp_path))
    file = make_url(sqlite_url(tmp_path)).database
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.sqlite").symlink_to(file)
    link, waits = f"sqlite:///{tmp_path}/elsewhere/link.sqlite", threading.Event()

    def second():
        with alone("key", link, waits.set):
            pass

    with alone("key", sqlite_url(tmp_path), lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
    thread.join(30)


@pytest.mark.parametrize("place", ["file", "server"], indirect=True)
def test_a_failure_lets_the_next_one_in(place):
    with pytest.raises(MemoryError), alone("key", place, lambda: None):
        raise MemoryError
    with alone("key", place, lambda: pytest.fail("the lock is still held")):
        pass


def test_the_first_value_stored_under_a_charge_is_the_release(tmp_path):
    ledger = Ledger(sqlite_url(tmp_path))
    store, wanted = ReleaseStore.at(str(tmp_path / "releases")), make_request()

    def draw(reservation):
        store.save(reservation.id, {"drawn by": "a run that was taken for dead"})
        cost = Cost(guarantee=wanted.guarantee, event=wanted.event)
        return Release(value=StageRelease(facts={"drawn by": "this run"}), cost=cost)

    made = release_once(
        ledger=ledger, store=store, request=wanted, terms=make_terms(), plan=(), draw=draw
    )
    assert made.facts == {"drawn by": "a run that was taken for dead"}
    assert ledger.count_charges() == 1
    assert ledger.entries()[-1].artifact_digest == store.digest(made.reservation.id)
