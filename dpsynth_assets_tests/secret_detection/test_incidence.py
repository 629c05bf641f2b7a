"""The dictionary of secrets: records that hold each, private in every representation."""

import polars as pl
import pytest

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.secret_detection.finding import find_secrets, secrets_of_columns
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.stored import read_private_records

RECORDS = pl.DataFrame(
    {
        "record_id": ["a", "b", "c"],
        "text": ["Code 11 and code 11, CODE 22.", "nothing", "code 22"],
    }
)
CODES = {"name": "code", "detector": "regex", "pattern": r"code \d+", "max_records": 1}


def declared(*kinds):
    return SecretsSpec.model_validate({"kinds": list(kinds)})


def test_each_record_counts_once_for_a_secret():
    found = find_secrets(RECORDS, declared(CODES))
    assert found.secrets["value"].to_list() == ["code 11", "code 22"]
    assert found.secrets["records"].to_list() == [1, 2]


def test_a_kind_may_be_one_secret():
    found = find_secrets(RECORDS, declared({**CODES, "each": "kind"}))
    assert found.secrets["records"].to_list() == [2]


def test_equal_values_of_two_kinds_are_two_secrets():
    both = declared(CODES, {**CODES, "name": "again"})
    assert find_secrets(RECORDS, both).secrets["kind"].to_list() == ["again"] * 2 + ["code"] * 2


def test_caps_are_compared_for_the_steward():
    summary = find_secrets(RECORDS, declared(CODES)).over_their_caps(declared(CODES))
    assert summary == {"code": {"secrets": 2, "most_records": 2, "over_cap": 1}}


def test_no_representation_shows_a_secret():
    assert "code 11" not in repr(find_secrets(RECORDS, declared(CODES)))


def test_nothing_found_is_an_empty_table():
    found = find_secrets(RECORDS.head(0), declared(CODES))
    assert (found.secrets.height, found.secrets.columns) == (0, ["kind", "value", "records"])


def test_progress_tells_shares_alone():
    told = []
    find_secrets(RECORDS, declared(CODES, {**CODES, "name": "b"}), progress=told.append)
    assert told == [0.5, 1.0]


@pytest.mark.parametrize("with_id", [True, False])
def test_a_column_of_the_source_names_secrets(tmp_path, with_id):
    pl.DataFrame(
        {
            "text": ["first", "second", "third", "first"],
            "id": ["r1", "r2", "r3", "r4"],
            "patient": ["Ann", " ", None, "Ann"],
        }
    ).write_parquet(tmp_path / "source.parquet")
    who = {"name": "who", "detector": "column", "column": "patient", "max_records": 2}
    spec = private(
        source={"path": str(tmp_path / "source.parquet")},
        columns={"id": "id"} if with_id else {},
        budget={"epsilon": 1, "delta": 1e-6, "accountant": "tight"},
        held_out_fraction=0.0,
        secrets={"kinds": [who]},
    )

    ids = read_private_records(spec).records["record_id"]
    assert secrets_of_columns(spec, ids).rows() == [("who", "ann", 1)] * 2
    assert secrets_of_columns(spec, ids[:0]).rows() == []
