"""Records in parts are the records that lie whole: for any source, rules and number of parts."""

import gzip
import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records import sources as reader
from dpsynth_assets.records.reading import canonical_records, pieces_of_source
from dpsynth_assets.records.record_filters import CANONICAL, column_names
from dpsynth_assets.records.sources import source_batches
from dpsynth_assets.sensitive.read_records import joined_digest, source_digest
from dpsynth_assets_tests.stored import read_private_records, read_rows
from dpsynth_assets_tests.test_records_neighbours import FAST, HAS_COLUMNS, SOURCES, declare

KEY = bytes(range(32))


def written(folder, rows):
    file = folder / "rows.jsonl"
    lines = [json.dumps(row) for row in [HAS_COLUMNS, *rows]]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def in_parts(spec, piece_bytes=1):
    """Every part's raw rows, as the workers get them."""
    rows = {number: [] for number in range(spec.parts)}
    for pieces in pieces_of_source(spec, piece_bytes):
        for number, own in pieces.items():
            rows[number].append(own)
    return [pl.concat(frames) for frames in rows.values() if frames]


def joined(frames):
    return pl.concat(frames).sort(CANONICAL)


@FAST
@given(
    rows=SOURCES,
    ids=st.booleans(),
    bound=st.sampled_from([None, 1, 2]),
    parts=st.integers(2, 5),
    relation=st.sampled_from(["add-remove", "replace-one"]),
)
def test_records_are_the_same_in_parts_and_whole(tmp_path, rows, ids, bound, parts, relation):
    terms = {"ids": ids, "bound": bound, "neighboring_relation": relation}
    spec = declare(written(tmp_path, rows), parts=parts, **terms)
    raw = in_parts(spec)
    try:
        whole = read_private_records(spec)
    except PrivacyError:  # Ids that repeat where neighbours keep them: refused in parts too.
        with pytest.raises(PrivacyError):
            [canonical_records(part, spec) for part in raw]
        return
    each = [canonical_records(part, spec) for part in raw]
    assert joined([part.records for part in each]).equals(whole.records)
    assert joined([part.held_out for part in each]).equals(whole.held_out)
    set_aside = {}
    for part in each:
        for rule, count in part.set_aside.items():
            set_aside[rule] = set_aside.get(rule, 0) + count
    assert set_aside == whole.set_aside
    digests = [source_digest(part, spec, KEY) for part in raw]
    assert joined_digest(digests) == source_digest(read_rows(spec), spec, KEY)


def test_a_unit_is_in_one_part_wherever_its_records_stand(tmp_path):
    rows = [
        {"text": f"letter {n}", "kind": "x", "key": str(n), "who": f" {n % 7} "} for n in range(70)
    ]
    spec = declare(written(tmp_path, rows), ids=True, bound=3, parts=4)
    units = [set(canonical_records(part, spec).records["unit_id"]) for part in in_parts(spec)]
    assert sum(map(len, units)) == len(set().union(*units))
    assert len(units) > 1


ROWS = [{"key": str(n), "body": f"letter {n}, ünïcode \u2028", "stars": n % 3} for n in range(11)]


def sources(folder):
    frame = pl.DataFrame(ROWS)
    frame.write_csv(folder / "a.csv")
    (folder / "a.csv.gz").write_bytes(gzip.compress((folder / "a.csv").read_bytes()))
    text = (folder / "a.csv").read_text(encoding="utf-8").replace("\u2028", "!")
    (folder / "latin.csv").write_text(text, encoding="latin-1")
    lines = "\ufeff" + "\n".join(json.dumps(row) for row in ROWS) + "\n\n{torn\n[1]"
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    frame.write_parquet(folder / "a.parquet")
    broken = pa.table(
        {
            "key": [str(n) for n in range(5)],
            "body": pa.array([b"fine", b"bad \xff", b"fine", b"", None]).view(pa.string()),
            "stars": list(range(5)),
        }
    )
    pq.write_table(broken, folder / "lossy.parquet")
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink:
        table = frame.to_arrow()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "name", ["a.csv.gz", "latin.csv", "a.jsonl.gz", "a.parquet", "lossy.parquet", "a.arrow"]
)
def test_batches_joined_are_the_source_read_whole(tmp_path, monkeypatch, name):
    assert name in sources(tmp_path)
    source = {"path": str(tmp_path / name)}
    source |= {"encoding": "latin-1"} if name == "latin.csv" else {}
    columns = {"text": "body", "labels": ["stars"], "id": "key"}
    facts = {"labels": {"stars": ["0", "1", "2"]}}
    spec = declare("", ids=True, source=source, columns=columns, public_facts=facts)
    whole = read_rows(spec)
    monkeypatch.setattr(reader, "BATCH_ROWS", 4)
    read = list(source_batches(spec.source, column_names(spec)))
    assert pl.concat(read).equals(whole)
    if name != "a.arrow":  # Read in the pieces that it was written in.
        assert len(read) > 1
