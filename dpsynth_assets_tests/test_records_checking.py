"""Laws of checking: every defect of a source is one line, with rows and counts but no content."""

import json
import re
from types import SimpleNamespace

import pytest

from dpsynth_assets.datasets import parse_dataset_file
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records import check_dataset_file
from dpsynth_assets.records.reading import Tally, refuse_unfit, unfit
from dpsynth_assets_tests.declared import FIELDS, only as only_problem, written
from dpsynth_assets_tests.stored import read_private_records

SECRET = "Zaphod has gout"
GOOD = {"text": SECRET, "kind": "x", "key": "k0", "who": "w0"}


def write(folder, rows, **changes):
    source = folder / "rows.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    source.write_bytes("\n".join(lines).encode())
    own = {
        "source": {"path": str(source), "max_set_aside": 0.8},
        "columns": {"labels": ["kind"], "id": "key", "max_text_characters": 50},
        "public_facts": {"labels": {"kind": ["x", "y"]}},
        "privacy_unit": {"column": "who", "max_records": 1},
    }
    return written(folder / "defs.yaml", FIELDS | own | changes)


def check(file):
    return check_dataset_file(file).problems


def only(problems, file):
    problem = only_problem(problems, file)
    assert "Zaphod" not in str(problem)
    assert "gout" not in str(problem)
    return problem


def test_a_sound_file_has_no_problems(tmp_path):
    assert check(write(tmp_path, [GOOD])) == []


def test_records_beyond_the_bound_of_their_unit_are_counted(tmp_path):
    rows = [GOOD | {"key": f"k{n}", "who": f"w{n % 2}"} for n in range(5)]
    file = write(tmp_path, rows)
    problem = only(check(file), file)
    assert "at most 1 of one who, got 3 records beyond it" in str(problem)
    assert problem.severity == "warning"


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ({"text": " \n\t"}, "columns.text", "1 row set aside (missing text; row 2)"),
        ({"text": [SECRET]}, "columns.text", "text is not a string; row 2"),
        ({"text": f"{SECRET} \ufffd"}, "columns.text", "text is not UTF-8; row 2"),
        ({"kind": SECRET}, "columns.labels", "missing or unknown label; row 2"),
        ({"kind": None}, "columns.labels", "missing or unknown label; row 2"),
        ({"key": None}, "columns.id", "missing id; row 2"),
        ({"key": "\ufffd1"}, "columns.id", "missing id; row 2"),
        ({"who": ""}, "privacy_unit.column", "missing unit; row 2"),
        ({"text": SECRET * 9}, "columns.max_text_characters", "text too long; row 2"),
        ({"key": "k0", "who": "w0"}, "columns.id", "2 rows set aside (repeated id; rows 1, 2)"),
    ],
)
def test_each_rule_is_a_warning_at_its_field_with_its_rows(tmp_path, row, field, words):
    rows = [GOOD, GOOD | {"key": "k1", "who": "w1"} | row, GOOD | {"key": "k2", "who": "w2"}]
    file = write(tmp_path, rows)
    problem = only(check(file), file)
    assert problem.severity == "warning"
    assert problem.field == field
    assert words in problem.got


REPLACED = {"neighboring_relation": "replace-one"}


def test_replace_one_with_ids_says_that_they_are_kept(tmp_path):
    file = write(tmp_path, [GOOD], **REPLACED)
    problem = only(check(file), file)
    assert (problem.field, problem.severity) == ("neighboring_relation", "note")
    assert problem.got == "replace-one with columns.id: key, privacy_unit.column: who"


@pytest.mark.parametrize("text", ["other", ""])
def test_repeated_ids_under_replace_one_are_an_error(tmp_path, text):
    rows = [GOOD, GOOD | {"key": "k1", "who": "w1"}, GOOD | {"text": text}]
    problems = check(write(tmp_path, rows, **REPLACED))
    (problem,) = [problem for problem in problems if problem.severity == "error"]
    assert (problem.field, problem.got) == ("columns.id", "2 rows that share one (rows 1, 3)")
    assert "replace-one neighbours keep them" in problem.expected
    assert "repeated id" not in "".join(problem.got for problem in problems)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source": {"path": "/absent/a.csv"}}, "source.path"),
        ({"source": {"path": "/absent/*.csv"}}, "source.path"),
        ({"evaluation": {"canaries": "/absent/none.txt"}}, "evaluation.canaries"),
        (
            {"source": {"path": "/absent/a.csv"}, "budget": {"epsilon": 0, "delta": 1e-6}},
            "budget.epsilon",
        ),
    ],
)
def test_what_is_not_there_is_an_error_and_not_looked_for_where_the_file_is_wrong(
    tmp_path, changes, field
):
    file = write(tmp_path, [GOOD], **changes)
    problem = only(check(file), file)
    assert (problem.field, problem.severity) == (field, "error")


def test_torn_and_many_rows_are_counted_and_the_first_five_named(tmp_path):
    file = write(tmp_path, [GOOD, f'{{"text": "{SECRET}', "[1]"])
    got = only(check(file), file).got
    assert got == "2 rows set aside (unreadable record; rows 2, 3)"
    rows = [GOOD, *({"text": "", "kind": "x", "key": f"b{i}", "who": f"b{i}"} for i in range(7))]
    rows += [GOOD | {"key": f"k{i}", "who": f"w{i}"} for i in range(1, 7)]
    file = write(tmp_path, rows)
    got = only(check(file), file).got
    assert got == "7 rows set aside (missing text; rows 2, 3, 4, 5, 6, …)"


@pytest.mark.parametrize(("bad", "errors"), [(1, 0), (2, 1)])
def test_more_records_set_aside_than_declared_are_an_error_for_a_check_and_a_run(
    tmp_path, bad, errors
):
    rows = [GOOD | {"key": f"k{i}", "who": f"w{i}"} for i in range(20)]
    rows[:bad] = [row | {"kind": SECRET} for row in rows[:bad]]
    checked = check_dataset_file(
        file := write(tmp_path, rows, source={"path": str(tmp_path / "rows.jsonl")})
    )
    found = [problem for problem in checked.problems if problem.severity == "error"]
    assert [(problem.field, problem.got) for problem in found] == [
        ("source.max_set_aside", "2 of 20")
    ] * errors
    tally = checked.tallies["reviews"]
    assert (tally.records, tally.read) == (20, 20 - bad)
    assert tally.set_aside == {"missing or unknown label": bad}
    (declared,) = parse_dataset_file(file)[0]
    private = read_private_records(declared.spec)
    if errors:
        with pytest.raises(PrivacyError) as refused:
            refuse_unfit(private.tally, declared.spec)
        assert not re.search(r"\d", str(refused.value))
    else:
        refuse_unfit(private.tally, declared.spec)


def test_files_of_another_encoding_are_named_where_none_fits_all(tmp_path):
    for name, encoding in (("a.csv", "utf-8"), ("b.csv", "cp1252")):
        rows = "".join(f"k{name}{i},Grüße,x,w{name}{i}\n" for i in range(3))
        (tmp_path / name).write_bytes(f"key,text,kind,who\n{rows}".encode(encoding))
    file = write(tmp_path, [], source={"path": str(tmp_path / "*.csv"), "max_set_aside": 1})
    problem = only(check(file), file)
    assert problem.got.endswith("UTF-8 in a.csv and another encoding, e.g. cp1252, in b.csv")
    assert problem.remedy == "Save the latter as UTF-8: all files must have the same encoding."
    source = {"path": str(tmp_path / "*.csv"), "encoding": "cp1252"}
    misread = only(check(write(tmp_path, [], source=source)), file)
    assert misread.field == "source.encoding"
    assert problem.got.endswith(misread.got)


def test_dates_that_are_in_no_window_are_counted(tmp_path):
    days = [*(f"2025-{1 + i % 12:02d}-03" for i in range(12)), "2026-01-03", "", None, "01/02/26"]
    rows = [{"text": f"letter {i}", "key": str(i), "day": day} for i, day in enumerate(days)]
    cohorts = {"by": "window", "column": "day", "period": "month", "first": "2026-01-01"}
    alone = {"columns": {"id": "key"}, "public_facts": {}, "privacy_unit": {}}
    file = write(tmp_path, rows, cohorts=cohorts, **alone)
    problem = only(check(file), file)
    assert problem.field == "cohorts.column"
    assert problem.got == "3 without one, 12 before 2026-01-01"
    assert problem.severity == "warning"
    rows = [{"text": "hello", "key": "1"}]
    problem = only(check(write(tmp_path, rows, cohorts=cohorts, **alone)), file)
    assert problem.field == "cohorts.column"


def test_no_usable_record_is_an_error(tmp_path):
    file = write(tmp_path, [])
    assert only(check(file), file).got == "no rows"
    bad = [GOOD | {"key": str(i), "kind": SECRET} for i in range(2)]
    warning, error = check(write(tmp_path, bad))
    assert (warning.severity, error.severity) == ("warning", "error")
    assert error.got == "2 rows, all set aside"


@pytest.mark.parametrize(("number", "fits"), [(8, False), (9, True), (11, True), (12, False)])
def test_a_public_number_of_records_is_about_the_number_there_is(number, fits):
    """A refusal on one record more or fewer would tell whether one is among them."""
    spec = SimpleNamespace(
        cohorts=None,
        window=None,
        source=SimpleNamespace(max_set_aside=0.05),
        public_facts=SimpleNamespace(records=10),
    )
    found = [each.field for each in unfit(Tally(records=number, set_aside={}), spec)]
    assert found == ([] if fits else ["public_facts.records"])


def test_public_sources_are_checked_each_at_its_own_field(tmp_path):
    (tmp_path / "a.csv").write_text("text\nhello\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("text\n", encoding="utf-8")
    sources = [{"source": {"path": str(tmp_path / name)}} for name in ("a.csv", "b.csv", "c.csv")]
    file = written(tmp_path / "defs.yaml", {"name": "base", "source": sources}, "PublicData")
    assert [each.field for each in check(file)] == ["source.1.source.path", "source.2.source.path"]
    written(file, {"name": "base", "source": sources[2]["source"]}, "PublicData")
    assert only(check(file), file).field == "source.path"


def test_texts_that_are_no_records_of_the_declared_schema_are_counted(tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    texts = enumerate([SECRET, '{"a":"gout"}', '{"b":1}'])
    rows = [GOOD | {"key": f"k{n}", "who": f"w{n}", "text": text} for n, text in texts]
    file = write(tmp_path, rows, structured={"json_schema": schema})
    found = only(check(file), file)
    assert (found.field, found.severity) == ("structured.json_schema", "warning")
    assert "2 of 3 texts" in found.got
