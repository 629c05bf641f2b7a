"""Rows that are published are those that the ledger sealed, with every release behind them."""

import polars as pl
import pytest

from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.store import StoredReleases, candidate_problem
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, sqlite_url

FOLDER = "0123456789abcdef" * 2
ASSET = "tickets/mean/candidate_corpus"


@pytest.fixture
def book(tmp_path):
    return Ledger(sqlite_url(tmp_path)), StoredReleases(tmp_path / "releases")


def released(book, asset, **inputs):
    ledger, store = book
    rows = pl.DataFrame({"text": ["a train"]})
    request = make_request(event=POST_PROCESSING, asset=asset, parameters={"inputs": inputs})
    reservation = ledger.reserve(request, make_terms())
    digest, place = store.save(reservation.id, {}, rows)
    ledger.commit(reservation, artifact_digest=digest, artifact_uri=place)
    return rows.with_columns(pl.lit(reservation.id).alias("reservation")), reservation.id


@pytest.mark.parametrize("name", ["public_language_model", "language_model", "text_embedder"])
def test_a_public_folder_named_like_a_reservation_is_no_release(book, name):
    rows, _ = released(book, ASSET, **{name: FOLDER})
    assert candidate_problem(rows, ASSET, "tickets", *book) is None


def test_an_unknown_release_behind_the_rows_is_refused(book):
    rows, _ = released(book, ASSET, gradients=FOLDER)
    assert "in the ledger, got none" in candidate_problem(rows, ASSET, "tickets", *book)


@pytest.mark.parametrize("name", ["gradients", "public_corpus"])
def test_a_release_of_the_ledger_is_followed_under_any_name(book, name):
    _, stage = released(book, "tickets/mean/gradients", public_corpus=FOLDER)
    _, corpus = released(book, ASSET, **{name: stage})
    assert book[0].provenance().behind(corpus) == (stage,)
