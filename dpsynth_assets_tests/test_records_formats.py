"""Every format of a source gives the same canonical records; broken ones are refused in silence."""

import csv
import gzip
import json
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsynth_assets.datasets import PublicDataSpec, SourceSpec
from dpsynth_assets.records import SourceError, read_public_records
from dpsynth_assets.records.columns import READABLE, ColumnNames
from dpsynth_assets.records.sources import read_source
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.stored import read_private_records

TEXT = ColumnNames(text="body", others={})

ROWS = [
    {"key": "a", "body": "  first, with a comma ", "stars": 5},
    {"key": "b", "body": 'second "quoted"\nline', "stars": 1},
    {"key": "c", "body": "third ünïcode \u2028 line", "stars": 5},
]
EXPECTED = [
    ("a", "a", "first, with a comma", "5"),
    ("b", "b", 'second "quoted"\nline', "1"),
    ("c", "c", "third ünïcode \u2028 line", "5"),
]
SECRET = "Zaphod has gout"


def declare(path, **changes):
    base = {
        "source": {"path": str(path)},
        "columns": {"text": "body", "labels": ["stars"], "id": "key"},
        "public_facts": {"labels": {"stars": [1, 5]}},
        "held_out_fraction": 0,
    }
    return private(**base | changes)


def plain(path, **changes):
    """Declares a source that has only a text column."""
    return declare(path, columns={"text": "body"}, public_facts={}, **changes)


def columns_of(path, columns=TEXT):
    """The declared columns of a file."""
    return read_source(SourceSpec(path=str(path)), columns)


def writing(name, content):
    """Writes a file of what a table makes."""

    def write(folder, frame):
        (folder / name).write_bytes(content(frame))
        return folder / name

    return write


def lines_of(frame):
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in frame.to_dicts()).encode()


write_csv = writing("a.csv", lambda frame: frame.write_csv().encode())


def write_parquet(folder, frame):
    frame.write_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def write_huggingface(folder, frame):
    """Writes what `save_to_disk` writes: Arrow streams, class numbers, names in a JSON file."""
    target = folder / "saved" / "train"
    target.mkdir(parents=True)
    classes = frame.with_columns((pl.col("stars") == 5).cast(pl.Int64).alias("stars"))
    for number, part in enumerate([classes[:2], classes[2:]]):
        table = part.to_arrow()
        name = f"data-{number:05}-of-00002.arrow"
        with pa.ipc.new_stream(str(target / name), table.schema) as stream:
            stream.write_table(table)
    info = {"features": {"stars": {"_type": "ClassLabel", "names": ["1", "5"]}}}
    (target / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    (folder / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}', encoding="utf-8")
    return folder / "saved"


def as_parquet(column, kind):
    return lambda folder, frame: write_parquet(folder, frame.cast({column: kind}))


WRITERS = {
    "csv": write_csv,
    "tsv": writing("a.tsv", lambda frame: frame.write_csv(separator="\t").encode()),
    "csv.gz": writing("a.csv.gz", lambda frame: gzip.compress(frame.write_csv().encode())),
    "jsonl": writing("a.jsonl", lines_of),
    "jsonl.gz": writing("b.jsonl.gz", lambda frame: gzip.compress(lines_of(frame))),
    "parquet": write_parquet,
    "floats": as_parquet("stars", pl.Float64),
    "categories": as_parquet("body", pl.Categorical),
    "bytes": as_parquet("body", pl.Binary),
    "saved": write_huggingface,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_format_gives_the_same_canonical_records(tmp_path, write):
    result = read_private_records(declare(write(tmp_path, pl.DataFrame(ROWS))))
    assert result.records.columns == ["record_id", "unit_id", "text", "label"]
    assert set(result.records.dtypes) == {pl.String}
    assert result.records.rows() == EXPECTED
    assert result.set_aside == {}


def test_a_glob_joins_files_whose_columns_are_ordered_differently(tmp_path):
    frame = pl.DataFrame(ROWS)
    (tmp_path / "deep").mkdir()
    frame[:2].write_csv(tmp_path / "1.csv")
    frame[2:].select("stars", "body", "key").write_csv(tmp_path / "deep" / "2.csv")
    assert read_private_records(declare(tmp_path / "**" / "*.csv")).records.rows() == EXPECTED


def test_no_type_is_inferred_so_no_record_changes_how_another_is_read(tmp_path):
    lines = ["key,body,stars", "007,1.50,5", "1e3,true,1"]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    numbers = read_private_records(declare(tmp_path / "a.csv")).records
    (tmp_path / "a.csv").write_text("\n".join([*lines, "x,words,5"]), encoding="utf-8")
    mixed = read_private_records(declare(tmp_path / "a.csv")).records
    assert numbers.rows() == [("007", "007", "1.50", "5"), ("1e3", "1e3", "true", "1")]
    assert mixed.rows()[:2] == numbers.rows()


def test_a_source_without_rows_gives_no_records(tmp_path):
    (tmp_path / "a.csv").write_text("key,body,stars\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("", encoding="utf-8")
    for name in ("a.csv", "a.jsonl"):
        result = read_private_records(declare(tmp_path / name, held_out_fraction=0.2))
        assert result.records.is_empty()
        assert result.held_out.is_empty()


def test_a_named_format_overrides_the_suffix(tmp_path):
    file = write_csv(tmp_path, pl.DataFrame(ROWS)).rename(tmp_path / "a.txt")
    source = {"path": str(file), "format": "csv"}
    assert read_private_records(declare(file, source=source)).records.rows() == EXPECTED
    with pytest.raises(SourceError, match="a suffix among"):
        read_private_records(declare(file))


def test_several_splits_ask_for_one(tmp_path):
    folder = write_huggingface(tmp_path, pl.DataFrame(ROWS))
    (folder / "test").mkdir()
    with pytest.raises(SourceError, match=r"one split .* \(test, train\)"):
        read_private_records(declare(folder))


def test_bytes_that_are_not_utf8_spoil_only_their_own_record(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"body\nfine\nbad \xff\n")
    (tmp_path / "a.jsonl").write_bytes(b'{"body": "fine"}\n{"body": "bad \xff"}\n')
    (tmp_path / "surrogate.jsonl").write_bytes(b'{"body": "fine"}\n{"body": "bad \\ud800"}\n')
    buffers = pa.array([0, 4, 9], pa.int32()).buffers()
    texts = pa.StringArray.from_buffers(2, buffers[1], pa.py_buffer(b"finebad \xff"))
    table = pa.table({"body": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as stream:
        stream.write_table(table)
    for name in ("a.csv", "a.jsonl", "surrogate.jsonl", "a.parquet", "a.arrow"):
        result = read_private_records(plain(tmp_path / name))
        assert result.records["text"].to_list() == ["fine"], name
        assert result.set_aside == {"text is not UTF-8": 1}, name


BROKEN = {
    "array.json": json.dumps([{"body": SECRET}, {"body": SECRET}], indent=1).encode(),
    "above.csv": f"{SECRET}\n\nkey,body\na,b\n".encode(),
    "quote.csv": f'body\n"{SECRET}\n'.encode(),
    "empty.csv": b"",
    "torn.parquet": f"PAR1 {SECRET}".encode(),
    "torn.arrow": f"{SECRET}".encode(),
    "torn.jsonl.gz": f"{SECRET}".encode(),
    "headerless.csv": f"{SECRET},5\nmore,1\n".encode(),
    "keys.jsonl": json.dumps({SECRET: 1}).encode(),
    "text.unknown": SECRET.encode(),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_source_is_refused_without_a_word_of_it(tmp_path, name):
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(SourceError) as caught:
        read_private_records(plain(tmp_path / name))
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert name in str(error)
    assert "Zaphod" not in str(error)
    assert "gout" not in str(error)


TORN = {
    "an inner quote": (b'a,5",x\n', [("a", '5"', "x")]),
    "a comma too many": (b"a,b, c,x\n", []),
    "a comma too few": (b"a,b\n", []),
    "words behind a quote": (b'a,"so called" b,x\n', []),
    "an open quote": (b'a,"b,x\n', []),
    "a blank line": (b"\n  \n", []),
    "several lines": (b'a,"one\ntwo, three\nfour",x\n', [("a", "one\ntwo, three\nfour", "x")]),
}


@pytest.mark.parametrize("name", TORN)
def test_a_torn_line_of_a_csv_file_spoils_itself_alone(tmp_path, name):
    line, read = TORN[name]
    sound = [(f"k{i}", f'the "{i}"th, of many', "y") for i in range(9)]
    quoted = [f'{key},"{text.replace(chr(34), chr(34) * 2)}",{last}\n' for key, text, last in sound]
    lines = [line.encode() for line in quoted]
    (tmp_path / "a.csv").write_bytes(b"".join([b"key,body,unread\n", *lines[:4], line, *lines[4:]]))
    columns = ColumnNames(text="body", others={"columns.id": "key"})
    found = columns_of(tmp_path / "a.csv", columns)
    kept = found.filter(READABLE).select("key", "body").rows()
    assert kept == [row[:2] for row in (*sound[:4], *read, *sound[4:])]
    assert found.height - len(kept) == (not read and name != "a blank line")


@pytest.mark.parametrize("end", ["\r", "\r\n", ",\n"], ids=ascii)
def test_csv_files_as_programs_write_them_are_read(tmp_path, end):
    lines = ["key,body", *(f"{i},text {i}" for i in range(3)), ""]
    (tmp_path / "a.csv").write_bytes(end.join(lines).encode())
    marked = "sep=;\n" + "\n".join(lines).replace(",", ";")
    (tmp_path / "marked.csv").write_text(marked)
    for name in ("a.csv", "marked.csv"):
        found = columns_of(tmp_path / name)
        assert found["body"].to_list() == ["text 0", "text 1", "text 2"], name


def test_names_of_classes_are_read_from_the_schema_of_a_parquet_file(tmp_path):
    features = {"stars": {"_type": "ClassLabel", "names": ["bad", "good"]}}
    table = pa.table({"body": ["a", "b", "c"], "stars": [1, 0, -1]}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    columns = ColumnNames(text="body", others={"columns.labels.0": "stars"})
    found = columns_of(tmp_path / "a.parquet", columns)
    assert found["stars"].to_list() == ["good", "bad", None]
    for values, expected in (
        (["good", "bad", None],) * 2,
        ([1.0, None, float("nan")], ["good", None, None]),
        ([1.7, -0.5, 0.0], [None, None, "bad"]),  # no class has such a number
    ):
        other = pa.table({"body": ["a", "b", "c"], "stars": values})
        pq.write_table(other.replace_schema_metadata(table.schema.metadata), tmp_path / "a.parquet")
        found = columns_of(tmp_path / "a.parquet", columns)
        assert found["stars"].to_list() == expected


@pytest.mark.parametrize(
    "written",
    ["{broken", "[1]", '{"info": {"features": {"stars": {"_type": "ClassLabel", "names": "ab"}}}}'],
)
def test_metadata_of_hugging_face_that_cannot_be_read_is_one_line(tmp_path, written):
    folder = write_huggingface(tmp_path, pl.DataFrame(ROWS))
    table = pa.table({"body": ["a", "b"], "stars": [0, 1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": written}), tmp_path / "a.parquet")
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(written.replace('{"info": ', "").removesuffix("}"))
    for path in (tmp_path / "a.parquet", folder):
        with pytest.raises(SourceError, match=r"Hugging Face.s metadata with the features") as told:
            columns_of(path, ColumnNames(text="body", others={"x": "stars"}))
        assert "\n" not in str(told.value)


def test_a_missing_column_is_named_and_a_close_one_suggested(tmp_path):
    file = write_parquet(tmp_path, pl.DataFrame(ROWS))
    with pytest.raises(
        SourceError, match=r"columns\.text: .*'bodyy'.*Did you mean 'body'"
    ) as error:
        read_private_records(declare(file, columns={"text": "bodyy"}, public_facts={}))
    assert error.value.got == "columns key, body, stars"
    (tmp_path / "headerless.csv").write_text("Dismissal,x\nother,y\n")
    other = declare(tmp_path / "headerless.csv", columns={"text": "dismissals"}, public_facts={})
    with pytest.raises(SourceError) as error:
        read_private_records(other)
    assert "Dismissal" not in str(error.value)
    assert "but 'Dismissal'" in error.value.told


def test_a_column_of_numbers_is_no_text(tmp_path):
    file = write_parquet(tmp_path, pl.DataFrame({"body": [1, 2]}))
    with pytest.raises(SourceError, match=r"columns\.text: expected a column of text"):
        read_private_records(plain(file))


@pytest.mark.parametrize("kind", [pl.List(pl.Enum(["HIV"])), pl.Struct({"HIV": pl.String})])
def test_a_type_is_named_without_the_data_that_it_holds(tmp_path, kind):
    file = write_parquet(
        tmp_path, pl.DataFrame({"body": pl.Series([None], dtype=kind), "k": ["k"]})
    )
    for text, others in (("body", {}), ("k", {"columns.id": "body"})):
        with pytest.raises(SourceError, match=r"got type (List|Struct) in") as raised:
            columns_of(file, ColumnNames(text=text, others=others))
        assert "HIV" not in str(raised.value)


def test_bytes_that_are_an_id_and_small_floats_are_read_and_durations_are_refused(tmp_path):
    columns = ColumnNames(text="body", others={"columns.id": "key", "columns.labels.0": "stars"})
    frame = pl.DataFrame({"body": ["a", "b"], "key": [b"\xff\x01", b"k"], "stars": [0.1, 2.0]})
    file = write_parquet(tmp_path, frame.with_columns(pl.col("stars").cast(pl.Float32)))
    found = columns_of(file, columns)
    assert (found["key"].to_list(), found["stars"].to_list()) == (["ff01", "k"], ["0.1", "2"])
    write_parquet(tmp_path, frame.with_columns(pl.col("stars").cast(pl.Int64).cast(pl.Duration)))
    with pytest.raises(SourceError, match=r"labels\.0: .* got type Duration.*a\.parquet\. Name"):
        columns_of(file, columns)
    assert columns_of(file, replace(columns, any_type=True)).height == 2


def test_an_unreachable_hub_is_one_line_with_a_way_out(monkeypatch):
    def offline(*_args, **_options):
        raise OSError("a long story about sockets")

    monkeypatch.setattr(pl, "scan_parquet", lambda _path: pl.LazyFrame().map_batches(offline))
    monkeypatch.setattr(pl.LazyFrame, "collect_schema", offline)
    with pytest.raises(SourceError, match=r"Hugging Face hub.*Go online") as error:
        read_private_records(plain("hf://datasets/owner/name/*.parquet"))
    assert "sockets" not in str(error.value)


def test_public_sources_with_different_columns_are_joined_in_declared_order(tmp_path):
    pl.DataFrame({"extract": [" one ", None, "two"], "genre": ["x", "y", None]}).write_parquet(
        tmp_path / "a.parquet"
    )
    (tmp_path / "b.csv").write_text("text\nthree\nfour\nfive\n", encoding="utf-8")
    first = {
        "source": {"path": str(tmp_path / "a.parquet")},
        "columns": {"text": "extract", "labels": ["genre"]},
    }
    second = {"source": {"path": str(tmp_path / "b.csv")}, "max_documents": 2}
    spec = PublicDataSpec(name="base", source=[first, second])
    expected = [("one", "x"), ("two", ""), ("three", ""), ("four", "")]
    assert read_public_records(spec).rows() == expected
    limited = PublicDataSpec(name="base", source=[first, second], max_documents=3)
    assert read_public_records(limited).rows() == expected[:3]
    assert read_public_records(PublicDataSpec(name="demo")).is_empty()


def test_one_quoted_record_whose_lines_look_like_rows_is_one_record(tmp_path):
    """Else one person's text would be many records, with labels of its own choice."""
    text = "\n".join(["hello", *(f"{number},a row" for number in range(50)), "bye,now"])
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["key", "body"], ["1", "first"], ["2", text], ["3", "last"]])
    assert columns_of(tmp_path / "a.csv")["body"].to_list() == ["first", text, "last"]
