"""`dpsynth init`: what it suggests, what it leaves to the steward, and what it never shows."""

import json
import re

import polars as pl
import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from dpsynth_assets.cli.column_profiles import profile_columns, suggest
from dpsynth_assets.cli.main import app
from dpsynth_assets.datasets import dataset_template, parse_dataset_file
from dpsynth_assets.datasets.template import Choices, scalar

SECRET = "Ottoline Brackenbury asked why her account was closed"


def complaints(rows=400):
    """Five columns: an id, a person with two records each, a label, a rare label value, a text."""
    return pl.DataFrame(
        {
            "ticket_id": [f"T{index}" for index in range(rows)],
            "customer_id": [f"C{index // 2}" for index in range(rows)],
            "topic": [
                "witness protection" if index == 7 else ("billing", "delivery")[index % 2]
                for index in range(rows)
            ],
            "message": [f"{SECRET}, letter number {index} of this year." for index in range(rows)],
            "score": [f"{index / 7:.3f}" for index in range(rows)],
        }
    )


def written(tmp_path, kind):
    frame = complaints()
    if kind == "csv":
        frame.write_csv(tmp_path / "data.csv")
        return tmp_path / "data.csv"
    if kind == "tsv":
        frame.write_csv(tmp_path / "data.tsv", separator="\t")
        return tmp_path / "data.tsv"
    if kind == "jsonl":
        rows = [{**row, "history": [1, 2]} for row in frame.to_dicts()]
        (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\nbroken\n")
        return tmp_path / "data.jsonl"
    if kind == "parquet":
        frame.with_columns(history=pl.lit([1, 2])).write_parquet(tmp_path / "data.parquet")
        return tmp_path / "data.parquet"
    return saved_to_disk(frame, tmp_path / "data")


def saved_to_disk(frame, folder):
    """What Hugging Face's `save_to_disk` writes: Arrow streams and their description."""
    folder.mkdir()
    table = frame.to_arrow()
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of dataset files, where `init` writes."""
    folder = tmp_path / "datasets"
    folder.mkdir()
    monkeypatch.setenv("DPSYNTH_DATASETS", str(folder))
    return folder


def init(*arguments):
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "huggingface"])
def test_every_format_gives_the_same_suggestions(tmp_path, kind):
    found = suggest(profile_columns(str(written(tmp_path, kind))))
    assert found.text == "message"
    assert found.id == "ticket_id"
    assert found.unit == "customer_id"
    assert [label.name for label in found.labels] == ["topic"]


def test_the_file_declares_what_was_suggested_and_protects_the_person(folder, tmp_path):
    source = written(tmp_path, "csv")
    result = init("complaints", "--from", source)
    assert result.exit_code == 0, result.output
    files, problems = parse_dataset_file(folder / "complaints" / "defs.yaml")
    assert problems == []
    spec = files[0].spec
    assert (spec.source.path, spec.columns.text) == (str(source), "message")
    assert (spec.privacy_unit.column, spec.privacy_unit.max_records) == ("customer_id", 1)
    assert spec.columns.labels == []
    assert spec.public_facts.records is None


def test_label_values_are_a_comment_until_the_steward_confirms_them(folder, tmp_path):
    source = written(tmp_path, "csv")
    assert init("complaints", "--from", source).exit_code == 0
    text = (folder / "complaints" / "defs.yaml").read_text()
    lines = [line for line in text.splitlines() if "billing" in line]
    assert len(lines) == 1
    assert lines[0].strip().startswith("#")
    assert init("complaints", "--from", source, "--label", "topic", "--force").exit_code == 0
    spec = parse_dataset_file(folder / "complaints" / "defs.yaml")[0][0].spec
    assert spec.columns.labels == ["topic"]
    assert set(spec.public_facts.labels["topic"]) == {"billing", "delivery"}


def test_a_value_that_few_records_share_is_neither_written_nor_shown(folder, tmp_path):
    result = init("complaints", "--from", written(tmp_path, "csv"), "--label", "topic")
    text = (folder / "complaints" / "defs.yaml").read_text()
    assert "witness" not in text + result.output


def test_no_text_and_no_person_is_shown_or_written(folder, tmp_path):
    result = init("complaints", "--from", written(tmp_path, "csv"))
    text = (folder / "complaints" / "defs.yaml").read_text()
    for needle in ("Ottoline", "C17", "T17", "letter number"):
        assert needle not in text + result.output


def test_the_number_of_records_is_not_written(folder, tmp_path):
    source = written(tmp_path, "csv")
    init("complaints", "--from", source)
    text = (folder / "complaints" / "defs.yaml").read_text()
    assert str(source) in text
    # The path is the one thing here that may hold any digits: a temporary folder counts its runs.
    assert not re.search("400|399", text.replace(str(source), ""))


def test_it_says_what_must_be_decided_and_what_comes_next(folder, tmp_path):
    result = init("complaints", "--from", written(tmp_path, "csv"))
    output = " ".join(result.output.split())
    for subject in ("Unit:", "Relation:", "Public facts:", "Budget:", "Public base"):
        assert subject in output
    assert "1: 50%, 5: 100%" in output
    assert "dpsynth plan complaints" in output


def test_decisions_and_roles_as_json(folder, tmp_path):
    result = init("complaints", "--from", written(tmp_path, "csv"), "--json", "--unit", "record")
    facts = json.loads(result.output)
    assert facts["columns"]["message"] == "text"
    assert facts["columns"]["score"] == "not read"
    assert [decision["about"].split(":")[0] for decision in facts["decisions"]] == [
        "Unit",
        "Relation",
        "Public facts",
        "Public facts",
        "Budget",
        "Public base",
    ]


def test_a_large_delta_is_pointed_out(folder, tmp_path):
    result = init("complaints", "--from", written(tmp_path, "csv"), "--delta", "5e-4")
    assert "too large for so many records" in " ".join(result.output.split())


def test_a_csv_without_a_header_is_refused_and_its_first_record_is_not_shown(folder, tmp_path):
    source = tmp_path / "bare.csv"
    complaints().write_csv(source, include_header=False)
    result = init("complaints", "--from", source)
    assert result.exit_code == 2
    assert "Add a header line" in result.output
    assert "Ottoline" not in result.output
    assert not (folder / "complaints" / "defs.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["Bad-Name"], "lower-case letters"),
        (["complaints", "--text", "nothing"], "Name a column of the file"),
        (["complaints", "--label", "score"], "few values with many records"),
    ],
)
def test_refusals_are_one_line_with_a_remedy(folder, tmp_path, arguments, remedy):
    name, *options = arguments
    result = init(name, "--from", written(tmp_path, "csv"), *options)
    assert result.exit_code == 2
    assert remedy in result.output


def test_an_existing_file_is_not_replaced_unasked(folder, tmp_path):
    source = written(tmp_path, "csv")
    assert init("complaints", "--from", source).exit_code == 0
    again = init("complaints", "--from", source)
    assert again.exit_code == 2
    assert "--force" in again.output


def test_a_file_without_sentences_asks_for_the_text_column(folder, tmp_path):
    pl.DataFrame({"a": ["x"] * 50, "b": ["y"] * 50}).write_csv(tmp_path / "short.csv")
    result = init("complaints", "--from", tmp_path / "short.csv")
    assert result.exit_code == 2
    assert "--text" in result.output


def test_a_source_that_is_not_there_is_one_line(folder, tmp_path):
    result = init("complaints", "--from", tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "nothing at" in result.output


@pytest.mark.parametrize("text", ["plain", "two words", "1", "yes", "ü, [x]", '"q"', "a: b", "# c"])
def test_a_scalar_is_read_back_as_the_text_it_was(text):
    assert yaml.safe_load(f"key: {scalar(text)}") == {"key": text}
    assert yaml.safe_load(f"[{scalar(text)}, b]") == [text, "b"]


def test_every_choice_reaches_the_file():
    choices = Choices(
        path="/data/two words.csv",
        text="the text",
        id="number",
        unit="who",
        max_records=3,
        labels={"kind": ["1", "no"]},
        suggested={"other": ["x"]},
        epsilon=2.5,
        delta=1e-8,
        public_data="base",
    )
    attributes = yaml.safe_load(dataset_template("mine", choices))["attributes"]
    assert attributes["source"]["path"] == "/data/two words.csv"
    assert attributes["columns"] == {"text": "the text", "labels": ["kind"], "id": "number"}
    assert attributes["privacy_unit"] == {"column": "who", "max_records": 3}
    assert attributes["public_facts"] == {"labels": {"kind": ["1", "no"]}}
    assert attributes["budget"]["epsilon"] == 2.5
    assert attributes["budget"]["delta"] == 1e-8
    assert attributes["public_data"] == "base"
