"""Laws of declared prompts and structures: what they may say, and how a refusal reads."""

import json

import pytest

from dpsynth_assets.datasets import parse_dataset_file
from dpsynth_assets.datasets.prompting import schema_outline
from dpsynth_assets_tests.declared import FIELDS, only, written

SCHEMA = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string"},
        "year": {"type": ["integer", "null"]},
        "cast": {"type": "array", "items": {"$ref": "#/$defs/name"}},
        "kind": {"enum": ["short", "long"]},
        "href": {"type": "string", "description": "a slug"},
    },
    "$defs": {"name": {"type": "string"}},
}
STRUCTURED = {"structured": {"json_schema": SCHEMA}}
PROMPT = {"private": "Texts about {label}.\n{examples}\nOne more.", "example": "Text: {example}"}


@pytest.fixture
def parse(tmp_path):
    return lambda **changes: parse_dataset_file(written(tmp_path / "a.yaml", FIELDS | changes))


@pytest.fixture
def only_problem(parse, tmp_path):
    def only_problem(**changes):
        files, problems = parse(**changes)
        assert not files
        return only(problems, tmp_path / "a.yaml")

    return only_problem


def test_braces_that_are_no_placeholder_may_stand_in_a_template(parse):
    _, problems = parse(prompt=PROMPT | {"public": 'A record: {"title": {} { x } {0}} on {label}'})
    assert not problems


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"private": "no place for a text"}, "private"),
        ({"private": "{examples} and {examples}"}, "private"),
        ({"private": "{exmaples}"}, "private"),
        (PROMPT | {"example": "no text"}, "example"),
        ({"public": "{examples}"}, "public"),
        (PROMPT | {"response_start": "{schema}"}, "response_start"),
        ({"public": "a", "public_text": "b"}, "public_text"),
        ({"example": "{example}"}, "example"),
        ({"separator": "\n"}, "separator"),
        ({"use_chat_template": True}, "use_chat_template"),
        (PROMPT | {"end": ""}, "end"),
        (PROMPT | {"privat": "x"}, "privat"),
    ],
)
def test_a_wrong_template_is_one_line_with_its_field(only_problem, prompt, field):
    assert only_problem(prompt=prompt).field == f"prompt.{field}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"columns": {"object": ["a", "b"], "text": "c"}}, "columns.object"),
        ({"columns": {"object": ["a", "a"]}}, "columns"),
        ({"columns": {"object": ["a"], "labels": ["b"], "id": "b"}}, "columns"),
        ({"prompt": {"public": "Write a record of {schema}."}}, "structured"),
        (STRUCTURED | {"prompt": {"text_end": "```"}}, "prompt.text_end"),
        (STRUCTURED | {"prompt": {"text_start": '{"year":'}}, "prompt.text_start"),
    ],
)
def test_a_wrong_object_or_structure_is_one_line_with_its_field(only_problem, changes, field):
    assert only_problem(**changes).field == field


@pytest.mark.parametrize("start", ["", '{"title":"', '{"title": "'])
def test_a_template_with_a_schema_and_a_start_of_its_texts_is_read(parse, start):
    prompt = {"public": "Write a record of {schema}.", "text_start": start}
    ((file,), _) = parse(**STRUCTURED, prompt=prompt)
    assert file.spec.constraining_schema == SCHEMA


@pytest.mark.parametrize(
    ("schema", "got"),
    [
        ({"type": "strin"}, "'strin'"),
        ({"properties": {"year": {"type": 7}}}, "properties.year.type"),
        ({"pattern": "("}, "pattern"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "https://example.com"),
        ({"$ref": "#/$defs/missing"}, "#/$defs/missing"),
        (["a list"], "a list"),
        ("nowhere/at/all.json", "nothing readable"),
    ],
)
def test_a_wrong_schema_is_one_line_with_its_field(only_problem, schema, got):
    problem = only_problem(structured={"json_schema": schema})
    assert problem.field == "structured.json_schema"
    assert got in problem.got


def test_a_schema_in_a_file_is_the_schema_written_out(parse, only_problem, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    (from_file,), _ = parse(structured={"json_schema": str(path)})
    (inline,), _ = parse(structured={"json_schema": SCHEMA})
    assert from_file.spec == inline.spec
    assert inline.spec.structured.schema_mapping == SCHEMA
    path.write_text("{", encoding="utf-8")
    problem = only_problem(structured={"json_schema": str(path)})
    assert problem.got == f"{path}, which is not JSON"


def test_a_path_with_an_environment_variable_is_read_once_it_is_rendered(
    parse, only_problem, tmp_path, monkeypatch
):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    structured = {"json_schema": "{{ env.DPSYNTH_DATA_SCHEMAS }}/schema.json"}
    monkeypatch.setenv("DPSYNTH_DATA_SCHEMAS", str(tmp_path))
    (file,), _ = parse(structured=structured)
    assert file.spec.structured.schema_mapping == SCHEMA
    monkeypatch.delenv("DPSYNTH_DATA_SCHEMAS")
    assert "DPSYNTH_DATA_SCHEMAS" in only_problem(structured=structured).expected


def test_the_outline_of_a_schema_names_every_field_with_its_type(parse):
    outline = (
        '{"title": string, "year": integer or null, "cast": [string], '
        '"kind": "short" | "long", "href": string (a slug)}'
    )
    assert schema_outline(SCHEMA) == outline
    (file,), _ = parse(structured={"json_schema": SCHEMA})
    assert file.spec.structured.prompt_text == outline
    (file,), _ = parse(structured={"json_schema": SCHEMA, "description": "our words"})
    assert file.spec.structured.prompt_text == "our words"


def test_the_outline_of_a_recursive_schema_ends():
    outline = schema_outline({"properties": {"next": {"$ref": "#"}}})
    assert outline.count("next") < 20
    assert outline.count("{") == outline.count("}")


def test_a_field_of_the_object_may_also_be_label_and_unit(parse):
    _, problems = parse(
        columns={"object": ["text", "year"], "labels": ["year"]},
        public_facts={"labels": {"year": [1950]}},
        privacy_unit={"column": "text", "max_records": 1},
    )
    assert not problems


@pytest.mark.parametrize(
    ("schema", "got"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, "not"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ],
)
def test_a_schema_that_decoding_cannot_follow_is_refused_or_let_be(
    parse, only_problem, schema, got
):
    problem = only_problem(structured={"json_schema": schema})
    assert problem.field == "structured.json_schema"
    assert got in str(problem)
    ((file,), _) = parse(structured={"json_schema": schema, "constrained_decoding": False})
    assert file.spec.constraining_schema is None
