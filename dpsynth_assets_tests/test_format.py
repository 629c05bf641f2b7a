"""Homes and stores have one format: another is refused as it is; a plain copy is opened."""

import shutil
from functools import partial

import polars as pl
import pytest

from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import FORMAT, FormatError
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms

ROWS = pl.DataFrame({"text": ["a letter"]})


def content(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def paid():
    """A release that is charged, stored and committed; asked for again, it is reused."""
    ledger, store = PrivacyLedger().open(), ReleaseStore()
    reservation = ledger.reserve(make_request(), make_terms())
    if not reservation.reused:
        digest, place = store.save(reservation.id, {"rows": 1}, ROWS)
        ledger.commit(reservation, artifact_digest=digest, artifact_uri=place)
    assert store.digest(reservation.id) == ledger.sealed_digest(reservation.id)
    assert ledger.verify().ok
    return reservation


def refused(open_it, place):
    before = content(place)
    with pytest.raises(FormatError) as raised:
        open_it()
    assert f"Expected format 1 in {place}, got" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert content(place) == before


def test_a_new_home_and_its_store_say_their_format(own_home):
    paid()
    for place in (own_home, home().releases):
        assert (place / ".format").read_text() == f"{FORMAT}\n"
        assert (place / ".format").stat().st_mode & 0o077 == place.stat().st_mode & 0o066


@pytest.mark.parametrize("other", [None, "", "2\n"])
def test_a_home_or_store_of_another_format_is_refused_and_not_written_to(own_home, other):
    reservation = paid().id
    store = StoredReleases(home().releases)
    read = [partial(store.load, reservation), partial(store.digest, reservation)]
    for place, uses in (
        (store.base, [*read, partial(store.save, "second", {})]),
        (own_home, [home, PrivacyLedger().open]),
    ):
        (place / ".format").unlink()
        if other is not None:
            (place / ".format").write_text(other)
        for use in uses:
            refused(use, place)


def test_a_copy_of_a_home_is_opened_and_pays_for_nothing_again(own_home, tmp_path, monkeypatch):
    first = paid()
    open_charge = PrivacyLedger().open().reserve(make_request(release="2"), make_terms(epsilon=20))
    shutil.copytree(own_home, tmp_path / "copy")
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "copy"))
    again = paid()
    assert (again.reused, again.id) == (True, first.id)
    assert PrivacyLedger().open().is_open(open_charge.id)
