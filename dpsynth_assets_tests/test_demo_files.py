"""The demo's files: equal by seed, declared labels, secrets present, canaries out of reach."""

import re

import polars as pl
import pytest
from mailboxes import planted_canaries, private_rows, public_rows
from mailboxes.organisations import PRIVATE_ORGANISATION
from mailboxes.topics import DESKS
from write import write_demo_files

from dpsynth_assets.paths import project_root

ROWS = 600
SIZES = dict.fromkeys(("public_documents", "private_records"), ROWS)
SIZES |= dict.fromkeys(("further_private_records", "feedback_records"), 60)
MAILBOXES = ("tickets", "letters", "enquiries", "cases", "feedback")
FILES = {"public.parquet", "private_canaries.txt", "private_letters_canaries.txt"}
FILES |= {f"private_{name}.jsonl" for name in MAILBOXES}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    write_demo_files(folder, **SIZES, seed=3)
    return folder


@pytest.fixture(scope="module")
def public(corpora):
    return pl.read_parquet(corpora / "public.parquet")


@pytest.fixture(scope="module")
def private(corpora):
    return pl.read_ndjson(corpora / "private_tickets.jsonl")


def words(texts):
    return {word for text in texts for word in re.findall(r"[A-Za-z0-9]+", text)}


def test_the_committed_files_are_those_that_the_generator_writes(tmp_path):
    write_demo_files(tmp_path)
    committed = project_root() / "data" / "demo"
    assert {path.name for path in tmp_path.iterdir()} == FILES
    for name in FILES - {"public.parquet"}:
        assert (committed / name).read_bytes() == (tmp_path / name).read_bytes()
    # How Parquet lays out equal rows depends on the version of polars.
    assert pl.read_parquet(committed / "public.parquet").equals(
        pl.read_parquet(tmp_path / "public.parquet")
    )


def test_public_words_never_mix_letters_and_digits_as_canaries_do(public):
    def mixed(word):
        return re.search(r"[A-Z]\d[A-Z]|\d[A-Z]\d", word)

    assert not any(mixed(word) for word in words(public["text"]))
    assert all(mixed(block) for code in planted_canaries(3) for block in code.split("-"))


def test_each_canary_is_planted_its_number_of_times_in_different_records(corpora, private):
    codes = (corpora / "private_canaries.txt").read_text().split()
    expected = planted_canaries(3)
    assert codes == list(expected)
    for code in codes:
        hosts = [text for text in private["text"] if code in text]
        assert len(hosts) == expected[code]
    assert [expected[code] for code in codes[:5]] == [1, 2, 4, 8, 1]


def test_private_records_carry_names_and_account_numbers(private):
    signed = sum(
        bool(re.search(r"[A-Z][a-z]+ [A-Z][a-z]+, \w+ \w+ \d+", t)) for t in private["text"]
    )
    accounts = sum(bool(re.search(r"account RM-\d{4}", text)) for text in private["text"])
    emails = sum("@" in text for text in private["text"])
    assert signed == ROWS
    assert accounts > ROWS / 4
    assert emails > ROWS / 20


def test_a_customer_keeps_its_name_across_records(private):
    names = private.with_columns(
        pl.col("text").str.extract(r"([A-Z][a-z]+ [A-Z][a-z]+), \w+ \w+ \d+").alias("name")
    )
    per_customer = names.group_by("customer_id").agg(pl.col("name").n_unique())
    assert per_customer["name"].max() == 1
    assert private["customer_id"].n_unique() < ROWS


def test_the_private_organisation_is_never_named_in_public(public):
    assert not any(PRIVATE_ORGANISATION.name in text for text in public["text"])
    assert not any("RM-" in text for text in public["text"])


def test_rows_do_not_depend_on_how_many_follow():
    assert public_rows(10, 1) == public_rows(30, 1)[:10]
    assert len(private_rows(5, 1)) == 5


def test_the_second_mailbox_shares_no_record_customer_code_or_canary_with_the_first(corpora):
    first, second = (
        pl.read_ndjson(corpora / f"private_{name}.jsonl") for name in ("tickets", "letters")
    )
    assert not set(first["text"]) & set(second["text"])
    assert not set(first["id"]) & set(second["id"])
    codes, others = (
        set((corpora / name).read_text().split())
        for name in ("private_canaries.txt", "private_letters_canaries.txt")
    )
    assert not codes & others
    assert all(any(code in text for text in second["text"]) for code in others)
    assert set(second["label"]) == set(DESKS)


def test_the_mailboxes_of_one_organisation_share_no_record(corpora):
    mailboxes = [pl.read_ndjson(corpora / f"private_{name}.jsonl") for name in MAILBOXES[1:]]
    for column in ("id", "text"):
        values = [value for mailbox in mailboxes for value in mailbox[column]]
        assert len(set(values)) == len(values)
