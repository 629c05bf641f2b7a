"""Laws of composed records: a text is one JSON object that says what its row says."""

import json
import math

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.records import SourceError, check_dataset_file
from dpsynth_assets.records.columns import OBJECT, compose_column, compose_record
from dpsynth_assets_tests.declared import FIELDS, private, written
from dpsynth_assets_tests.stored import read_private_records

NAMES = ["title", "year", "cast", "score", "seen"]
KINDS = (pl.String, pl.Int64, pl.List(pl.String), pl.Float64, pl.Boolean)
TYPES = dict(zip(NAMES, KINDS, strict=True))
ROWS = [
    dict(zip(NAMES, values, strict=True))
    for values in (
        ('Ünïcode "quoted"\n\u2028 \\ \x01 😀', 1950, ["A, B", ""], 4.0, True),
        ("", None, [], 0.1, False),
        (None, -3, None, None, None),
    )
]
SECRET = "Zaphod has gout"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
rows = st.fixed_dictionaries(
    {
        "title": st.none() | texts,
        "year": st.none() | st.integers(-(2**63), 2**63 - 1),
        "cast": st.none() | st.lists(st.none() | texts, max_size=3),
        "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "seen": st.none() | st.booleans(),
    }
)


def declare(path, **changes):
    own = {"source": {"path": str(path)}, "columns": {"object": NAMES}, "held_out_fraction": 0}
    return private(**own | changes)


def write_parquet(folder, table):
    pl.DataFrame(table, schema=TYPES).write_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def write_jsonl(folder, table):
    lines = [json.dumps(row, ensure_ascii=False) for row in table]
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder / "a.jsonl"


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=4))
def test_a_composed_text_reads_back_as_its_row_in_declared_order(table):
    composed = compose_column(pl.DataFrame(table, schema=TYPES), NAMES)
    assert composed.name == OBJECT
    by_line = [compose_record(row, NAMES) for row in table]
    for row, typed, line in zip(table, composed, by_line, strict=True):
        if all(value is None for value in row.values()):
            assert (typed, line) == (None, None)
            continue
        assert json.loads(typed) == json.loads(line) == row
        assert list(json.loads(typed)) == list(json.loads(line)) == NAMES


def test_the_text_is_compact_and_keeps_its_letters():
    row = dict.fromkeys(NAMES) | {"title": "Ünïcode", "score": 1.5, "seen": True}
    text = '{"title":"Ünïcode","year":null,"cast":null,"score":1.5,"seen":true}'
    assert compose_record(row, NAMES) == text
    assert compose_column(pl.DataFrame([row], schema=TYPES), NAMES).to_list() == [text]


def test_a_text_depends_on_its_own_row_alone():
    alone = compose_column(pl.DataFrame(ROWS[:1], schema=TYPES), NAMES)[0]
    beside = compose_column(pl.DataFrame(ROWS, schema=TYPES), NAMES)[0]
    assert alone == beside
    assert compose_record({"year": 7}, NAMES) == compose_record(
        {"year": 7, "title": None, "other": SECRET}, NAMES
    )


def test_numbers_that_json_does_not_know_are_null():
    row = {"title": "a", "score": math.nan, "cast": [math.inf, {"b": -math.inf}]}
    read = json.loads(compose_record(row, NAMES))
    assert (read["score"], read["cast"]) == (None, [None, {"b": None}])
    frame = pl.DataFrame({"a": ["x", "x"], "b": [math.nan, math.inf]})
    assert [json.loads(t)["b"] for t in compose_column(frame, ["a", "b"])] == [None, None]


@pytest.mark.parametrize("write", [write_parquet, write_jsonl])
def test_every_typed_format_gives_the_same_records_without_empty_ones(tmp_path, write):
    read = read_private_records(declare(write(tmp_path, [*ROWS, dict.fromkeys(NAMES)])))
    assert sorted(read.records["text"]) == sorted(compose_record(row, NAMES) for row in ROWS)
    assert read.set_aside == {"missing text": 1}


def test_broken_lines_and_damaged_text_are_set_aside_by_themselves(tmp_path):
    file = write_jsonl(tmp_path, ROWS[:1])
    broken = ["", "{", '{"title": "\\ud800"}', '{"title": ["deep", "\ufffd"]}']
    file.write_text(file.read_text() + "\n".join(broken))
    read = read_private_records(declare(file))
    assert read.set_aside == {"unreadable record": 1, "text is not UTF-8": 2}


BYTES = SECRET.encode()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"raw": [BYTES]}, "columns.object.1"),
        ({"raw": [[BYTES]]}, "columns.object.1"),
        ({"raw": [{"a": BYTES}]}, "columns.object.1"),
        ({"raws": ["a"]}, "Did you mean 'raws'?"),
    ],
)
def test_bytes_and_missing_columns_are_refused_by_their_place_and_not_shown(tmp_path, table, told):
    pl.DataFrame({"title": ["a"], **table}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError) as caught:
        read_private_records(declare(tmp_path / "a.parquet", columns={"object": ["title", "raw"]}))
    assert caught.value.field == "columns.object.1"
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)


def test_csv_gives_text_and_null(tmp_path):
    (tmp_path / "a.csv").write_text("title,year\nA,1950\n,7\n", encoding="utf-8")
    read = read_private_records(declare(tmp_path / "a.csv", columns={"object": ["year", "title"]}))
    assert sorted(read.records["text"]) == [
        '{"year":"1950","title":"A"}',
        '{"year":"7","title":null}',
    ]


@pytest.mark.parametrize("write", [write_parquet, write_jsonl])
def test_a_field_may_be_the_label_and_the_id_as_well(tmp_path, write):
    spec = declare(
        write(tmp_path, ROWS[:2]),
        columns={"object": NAMES, "labels": ["seen"], "id": "score"},
        public_facts={"labels": {"seen": ["true", "false"]}},
    )
    read = read_private_records(spec).records.sort("record_id")
    assert read["record_id"].to_list() == ["0.1", "4"]
    assert read["label"].to_list() == ["false", "true"]


def test_the_length_limit_counts_the_characters_of_the_object(tmp_path):
    length = len(compose_record(ROWS[0], NAMES))
    file = write_jsonl(tmp_path, ROWS[:1])
    for limit, kept in ((length, 1), (length - 1, 0)):
        columns = {"object": NAMES, "max_text_characters": limit}
        assert read_private_records(declare(file, columns=columns)).records.height == kept


def test_checking_names_the_object_where_a_text_has_a_problem(tmp_path):
    write_jsonl(tmp_path, [ROWS[0], dict.fromkeys(NAMES)])
    source = {"path": str(tmp_path / "a.jsonl"), "max_set_aside": 0.5}
    own = {"source": source, "columns": {"object": NAMES}}
    (problem,) = check_dataset_file(written(tmp_path / "movies.yaml", FIELDS | own)).problems
    assert (problem.field, problem.severity) == ("columns.object", "warning")
