"""The demo's files: equal by seed, declared labels, secrets present, canaries out of reach."""

import re

import polars as pl
import pytest
from mailboxes import planted_canaries
from mailboxes.organisations import PRIVATE_ORGANISATION
from mailboxes.topics import DESKS
from write import write_demo_files

from dpsynth_assets.paths import project_root

FOLDER = project_root() / "data" / "demo"
MAILBOXES = ("tickets", "letters", "enquiries", "cases", "feedback")
CANARIES = {"tickets": "private_canaries.txt", "letters": "private_letters_canaries.txt"}
FILES = {"public.parquet", *CANARIES.values(), *(f"private_{name}.jsonl" for name in MAILBOXES)}


@pytest.fixture(scope="module")
def public():
    return pl.read_parquet(FOLDER / "public.parquet")["text"]


@pytest.fixture(scope="module")
def mailboxes():
    return {name: pl.read_ndjson(FOLDER / f"private_{name}.jsonl") for name in MAILBOXES}


def canaries(name):
    return (FOLDER / CANARIES[name]).read_text().split()


def test_the_committed_files_are_those_that_the_generator_writes(tmp_path):
    write_demo_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    for name in FILES - {"public.parquet"}:
        assert (FOLDER / name).read_bytes() == (tmp_path / name).read_bytes()
    # How Parquet lays out equal rows depends on the version of polars.
    assert pl.read_parquet(FOLDER / "public.parquet").equals(
        pl.read_parquet(tmp_path / "public.parquet")
    )


def test_public_text_has_no_word_like_a_canary_and_never_names_the_private_organisation(public):
    mixed = r"[A-Z]\d[A-Z]|\d[A-Z]\d"
    assert all(re.search(mixed, block) for code in canaries("tickets") for block in code.split("-"))
    assert not public.str.contains(f"{mixed}|{PRIVATE_ORGANISATION.name}").any()


def test_each_canary_is_planted_its_number_of_times_in_different_records(mailboxes):
    expected = planted_canaries(0)
    assert canaries("tickets") == [*expected]
    texts = mailboxes["tickets"]["text"]
    for code, times in expected.items():
        assert texts.str.contains(code, literal=True).sum() == times
    assert [*expected.values()][:5] == [1, 2, 4, 8, 1]


def test_private_records_carry_the_name_of_their_customer(mailboxes):
    tickets = mailboxes["tickets"]
    signature = pl.col("text").str.extract(r"([A-Z][a-z]+ [A-Z][a-z]+), \w+ \w+ \d+")
    names = tickets.select("customer_id", name=signature)
    assert names["name"].null_count() == 0
    assert names.unique().height == names["customer_id"].n_unique() < tickets.height


def test_mailboxes_share_no_record_code_or_canary(mailboxes):
    for others in (("tickets", "letters"), MAILBOXES[1:]):
        for column in ("id", "text"):
            values = pl.concat([mailboxes[name][column] for name in others])
            assert values.n_unique() == len(values)
    codes, letters = canaries("letters"), mailboxes["letters"]
    assert not set(codes) & set(canaries("tickets"))
    assert all(letters["text"].str.contains(code, literal=True).any() for code in codes)
    assert set(letters["label"]) == set(DESKS)
