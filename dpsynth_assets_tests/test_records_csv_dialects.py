"""CSV files of every separator and encoding give the same records, once the source says how."""

import gzip

import pytest
import yaml
from pydantic import ValidationError

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.records import SourceError
from dpsynth_assets.records.columns import ColumnNames
from dpsynth_assets.records.csv_files import Dialect, recognised_dialect
from dpsynth_assets.records.sources import read_source
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import private
from dpsynth_assets_tests.pairs import pairwise
from dpsynth_assets_tests.stored import read_private_records

EXPECTED = [
    ("b", "Grüße; aus Köln", "5"),
    ("c", "naïve | café\nnext line", "1"),
    ("d", "“quoted” €3", "5"),
]
SIGNS = (";", "|", "\t", ",", "\x1f")
ENCODINGS = ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1250"]


def written(folder, sign=",", encoding="utf-8", name="d.csv"):
    """The three rows with another sign between the fields, in another encoding."""
    quoted = [[f'"{value}"' for value in row] for row in EXPECTED]
    text = "\n".join(sign.join(line) for line in (["key", "body", "stars"], *quoted)) + "\n"
    text = text.replace("ï", "i") if encoding == "cp1250" else text
    data = text.encode(encoding)
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def declare(path, **source):
    return private(
        source={"path": str(path), **source},
        columns={"text": "body", "labels": ["stars"], "id": "key"},
        public_facts={"labels": {"stars": [1, 5]}},
        held_out_fraction=0,
    )


def records(spec):
    frame = read_private_records(spec).records
    return frame.select("record_id", "text", "label").rows()


@pytest.mark.parametrize(
    ("sign", "encoding", "name"), pairwise(SIGNS, ENCODINGS, ["d.csv", "d.csv.gz"]), ids=ascii
)
def test_every_dialect_gives_the_same_records(tmp_path, sign, encoding, name):
    spec = declare(written(tmp_path, sign, encoding, name), separator=sign, encoding=encoding)
    expected = [tuple(value.replace("ï", "i") for value in row) for row in EXPECTED]
    assert records(spec) == (expected if encoding == "cp1250" else EXPECTED)


def test_a_byte_that_the_encoding_does_not_know_spoils_its_record_alone(tmp_path):
    data = written(tmp_path, ",", "cp1252").read_bytes().replace(b"caf\xe9", b"caf\x81")
    (tmp_path / "d.csv").write_bytes(data)
    read = read_private_records(declare(tmp_path / "d.csv", encoding="cp1252"))
    assert read.records["record_id"].to_list() == ["b", "d"]
    assert sum(read.set_aside.values()) == 1


def test_decoding_goes_on_across_pieces(tmp_path):
    long = "ü" * (3 << 20)
    (tmp_path / "d.csv").write_bytes(f"body\n{long}\nshort\n".encode("utf-16"))
    source = SourceSpec(path=str(tmp_path / "d.csv"), encoding="utf-16")
    read = read_source(source, ColumnNames(text="body", others={}))
    assert read["body"].to_list() == [long, "short"]


NAMES = {
    "UTF8": "utf-8", "utf_8_sig": "utf-8", "latin-1": "iso8859-1", "Windows-1252": "cp1252",
    "utf16": "utf-16", "shift_jis": "shift-jis",
}  # fmt: skip


@pytest.mark.parametrize(("encoding", "named"), NAMES.items())
def test_encodings_have_one_name_each(encoding, named):
    assert SourceSpec(path="d.csv", encoding=encoding).encoding == named


NO_ENCODINGS = [
    *("utf-9", "rot13", "hex", "idna", "undefined", "unicode_escape", "utf-7", "iso2022_jp"),
    *("../../etc/passwd", "a\0b", "\ud800", ""),
]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"encoding": name} for name in NO_ENCODINGS),
        *({"separator": sign} for sign in ("", ";;", "a", "7", '"', "\n", "§", "tab")),
    ],
    ids=ascii,
)
def test_what_is_no_dialect_is_refused(wrong):
    with pytest.raises(ValidationError) as refusal:
        SourceSpec.model_validate({"path": "d.csv", **wrong})
    assert len(refusal.value.errors()) == 1


@pytest.mark.parametrize(
    ("sign", "encoding", "declared", "told"),
    [
        (";", "utf-8", {}, 'separator: ";" under'),
        ("\t", "utf-8", {}, r'separator: "\t" under'),
        (",", "utf-8", {"separator": ";"}, 'separator: "," under'),
        (",", "utf-16", {}, "encoding: utf-16 under"),
        (",", "utf-32-be", {}, "encoding: utf-32-be under"),
        (",", "utf-8", {"encoding": "utf-16"}, "encoding: utf-8 under"),
        ("|", "utf-8", {"encoding": "utf-16"}, 'separator: "|" and encoding: utf-8 under'),
    ],
)
def test_another_dialect_than_declared_is_named(tmp_path, sign, encoding, declared, told):
    spec = declare(written(tmp_path, sign, encoding), **declared)
    with pytest.raises(SourceError) as refusal:
        read_private_records(spec)
    assert f"Write {told} source." in str(refusal.value)
    assert "Köln" not in str(refusal.value)


def test_a_header_that_is_not_utf_8_names_its_encoding(tmp_path):
    (tmp_path / "d.csv").write_bytes("Äußerung;x\nhello;1\n".encode("cp1252"))
    source = SourceSpec(path=str(tmp_path / "d.csv"))
    with pytest.raises(SourceError, match='Write separator: ";" and encoding: cp1252 under'):
        read_source(source, ColumnNames(text="Äußerung", others={}))


@pytest.mark.parametrize("wrong", [{"separator": ";"}, {"encoding": "cp1252"}])
def test_a_dialect_of_a_file_that_is_no_csv_is_refused(tmp_path, wrong):
    (tmp_path / "d.jsonl").write_text('{"body": "x"}\n')
    source = SourceSpec.model_validate({"path": str(tmp_path / "d.jsonl"), **wrong})
    with pytest.raises(SourceError, match="jsonl source"):
        read_source(source, ColumnNames(text="body", others={}))


def test_a_declaration_without_a_dialect_has_the_identity_it_had():
    """The version that this source had before `separator` and `encoding` were fields."""
    source = SourceSpec(path="data/x.csv")
    before = {"path": "data/x.csv", "format": "auto", "version": "1"}
    assert source.model_dump() == before
    assert version_of(source) == version_of(before)
    named = SourceSpec(path="data/x.csv", separator=";", encoding="cp1252")
    assert version_of(named) != version_of(source)
    assert SourceSpec.model_validate(named.model_dump()) == named


def test_what_is_recognised_follows_from_the_header_alone(tmp_path):
    header, usual = "key;body\n", Dialect(separator=",", encoding="utf-8")
    found = set()
    for record in ["a;plain\n", "a;caf\xe9\n", "a,b,c,d|e|f|g;x\n", ""]:
        (tmp_path / "d.csv").write_bytes((header + record).encode("latin-1"))
        found.add(recognised_dialect(tmp_path / "d.csv", usual))
    assert found == {Dialect(separator=";", encoding="utf-8")}


@pytest.mark.usefixtures("own_home", "known_speed")
@pytest.mark.parametrize(("sign", "encoding"), [(";", "utf-8"), ("|", "utf-16"), (",", "utf-8")])
def test_init_writes_the_dialect_that_it_recognises(tmp_path, sign, encoding):
    file = written(tmp_path, sign, encoding)
    wanted = ["--from", str(file), "--to", str(tmp_path), "--text", "body", "--id", "key"]
    dpsynth("init", "mine", *wanted, code=0)
    declared = yaml.safe_load((tmp_path / "mine" / "defs.yaml").read_text())["attributes"]["source"]
    assert declared.get("separator", ",") == sign
    assert declared.get("encoding", "utf-8") == encoding
    dpsynth("datasets", "check", tmp_path / "mine" / "defs.yaml", code=0)


@pytest.mark.usefixtures("own_home", "known_speed")
def test_init_tells_of_bytes_it_cannot_read_and_takes_an_encoding(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    file = written(tmp_path, ",", "cp1252")
    wanted = ["init", "mine", "--from", str(file), "--to", str(tmp_path), "--text", "body"]
    said = dpsynth(*wanted, "--id", "key")
    assert "3 values hold bytes that this encoding does not define" in " ".join(said.output.split())
    written_file = tmp_path / "mine" / "defs.yaml"
    assert "encoding" not in yaml.safe_load(written_file.read_text())["attributes"]["source"]
    dpsynth(*wanted, "--id", "key", "--encoding", "cp1252", "--force", code=0)
    assert yaml.safe_load(written_file.read_text())["attributes"]["source"]["encoding"] == "cp1252"
    refused = dpsynth(*wanted, "--encoding", "utf-9", "--force", code=2)
    assert len(refused.output.strip().splitlines()) == 1
