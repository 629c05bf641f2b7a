"""One run at a time draws a release: the lock is a file, or the ledger's server."""

import threading

import pytest
from sqlalchemy import make_url

from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.waiting import alone
from dpsynth_assets_tests.privacy.ledger_cases import sqlite_url


@pytest.fixture(params=["file", "link", "server"])
def places(request, tmp_path, own_home):
    """The ledger as each of two runs names it."""
    if request.param == "server":
        return [request.getfixturevalue("postgres_url")] * 2
    url = sqlite_url(tmp_path)
    if request.param == "file":
        return [url] * 2
    Ledger(url)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.sqlite").symlink_to(make_url(url).database)
    return [url, f"sqlite:///{tmp_path}/elsewhere/link.sqlite"]


def test_a_second_holder_waits_and_says_so_and_another_key_does_not(places):
    order, waits = [], threading.Event()

    def second():
        with alone("key", places[1], waits.set):
            order.append("second")

    with alone("key", places[0], lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        with alone("another key", places[1], lambda: order.append("waited for another key")):
            order.append("another")
        order.append("first")
    thread.join(30)
    assert order == ["another", "first", "second"]


def test_a_failure_lets_the_next_one_in(places):
    with pytest.raises(MemoryError), alone("key", places[0], lambda: None):
        raise MemoryError
    with alone("key", places[1], lambda: pytest.fail("the lock is still held")):
        pass
