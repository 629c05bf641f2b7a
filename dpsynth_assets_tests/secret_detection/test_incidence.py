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


@pytest.mark.parametrize(
    ("kinds", "secrets"),
    [
        ([CODES], [("code", "code 11", 1), ("code", "code 22", 2)]),
        ([{**CODES, "each": "kind"}], [("code", "", 2)]),
        (
            [CODES, {**CODES, "name": "again", "pattern": "code 11"}],
            [("again", "code 11", 1), ("code", "code 11", 1), ("code", "code 22", 2)],
        ),
    ],
    ids=["each value", "a kind as one", "two kinds"],
)
def test_each_record_counts_once_for_a_secret_of_its_kind(kinds, secrets):
    told = []
    found = find_secrets(RECORDS, declared(*kinds), progress=told.append)
    assert found.secrets.columns == ["kind", "value", "records"]
    assert found.secrets.rows() == secrets
    assert told == [number / len(kinds) for number in range(1, len(kinds) + 1)]
    assert "code 11" not in repr(found)
    assert find_secrets(RECORDS.head(0), declared(*kinds)).secrets.height == 0


def test_caps_are_compared_for_the_steward():
    summary = find_secrets(RECORDS, declared(CODES)).over_their_caps(declared(CODES))
    assert summary == {"code": {"secrets": 2, "most_records": 2, "over_cap": 1}}


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
