"""Laws of `dpsynth datasets`: exit codes, and lines a machine or a person can read."""

import json
import shutil

import polars as pl
import pytest

from dpsynth_assets.cli import datasets as command
from dpsynth_assets.cli.datasets import base_problems
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import FIELDS as DECLARED, private, written

SECRET = "Zaphod has gout"


@pytest.fixture
def folder(tmp_path, own_home, monkeypatch):
    """A folder with a public base in place of the package's own files, and a home for plans."""
    written(tmp_path / "base.yaml", {"name": "demo"}, "PublicData")
    monkeypatch.setattr(command, "dataset_folders", lambda: [tmp_path])
    return tmp_path


def write(folder, name="reviews", text="hello", **changes):
    (folder / f"{name}.csv").write_text(f"text\n{text}\n{SECRET}\n", encoding="utf-8")
    own = {"name": name, "source": {"path": str(folder / f"{name}.csv")}}
    return written(folder / f"{name}.yaml", DECLARED | own | changes)


def check(*arguments):
    return dpsynth("datasets", "check", *arguments)


def test_a_sound_folder_passes_and_foreign_components_are_passed_over(folder):
    write(folder, public_facts={"records": 2}, methods=[{"method": "aug_pe"}])
    (folder / "other.yaml").write_text("type: elsewhere.Thing\n", encoding="utf-8")
    assert check().output.strip() == "2 files, 0 errors, 0 warnings"


def test_warnings_pass_and_errors_do_not(folder):
    lax = {"path": str(folder / "reviews.csv"), "max_set_aside": 0.5}
    assert check(write(folder, text='""', source=lax)).exit_code == 0
    broken = write(folder, source={"path": "absent.csv"})
    result = check(broken)
    assert result.exit_code == 2
    assert f"{broken}: source.path: expected a file" in result.output
    assert "gout" not in result.output


GENERATOR = {
    "method": "dp_fine_tuning",
    "settings": {"steps": 4, "expected_batch_size": 64, "rows": 100},
}


@pytest.mark.parametrize(
    ("second", "line"),
    [
        ((), "warning: methods.0: expected a declared number of records"),
        (
            [{"method": "resampled", "settings": {"corpus": "nobody", "rows": 50}}],
            "methods.1.settings: expected the folder of another method, whose corpus resampled "
            "reads, got 'nobody'. Corpora of this file: dp_fine_tuning.",
        ),
    ],
)
def test_what_a_plan_finds_is_one_line_with_file_and_field(folder, second, line):
    """That it refuses a method is a warning; that a file contradicts itself is an error."""
    file = write(folder, topic_histogram={}, methods=[GENERATOR, *second])
    result = check(file)
    assert result.exit_code == (2 if second else 0)
    assert f"{file}: {line}" in result.output


@pytest.mark.parametrize(
    ("labels", "domain", "told"),
    [
        (["ABBR", "neg"], "Short questions", "in words what a text is, got 'ABBR', 'neg'"),
        ({"ABBR": "abbreviation", "neg": "complaint"}, "Short questions", ""),
        (["Sports", "Sci/Tech"], "Questions", "at least two words in the domain of the public"),
    ],
)
def test_words_that_tell_a_model_little_are_warned_of(folder, monkeypatch, labels, domain, told):
    base = PublicDataSpec(name="demo", domain=domain, language_model={"kind": "smollm2"})
    monkeypatch.setattr(command, "declared_base", lambda _name: base)
    named = {"columns": {"labels": ["kind"]}, "public_facts": {"labels": {"kind": labels}}}
    file = write(folder, methods=[{"method": "aug_pe"}], **named)
    lines = [line for line in check(file).output.splitlines() if "reviews.csv" not in line]
    found = [line for line in lines if "prompts" in line or "domain" in line]
    assert (len(found), told in "".join(found)) == (bool(told), True)


def test_a_file_whose_plan_cannot_be_made_at_all_is_an_error(folder, monkeypatch):
    from dpsynth_assets.methods import planning

    def plan(spec):
        raise ValueError("Expected sense, got none.")

    monkeypatch.setattr(planning, "plan_dataset", plan)
    result = check(write(folder))
    assert result.exit_code == 2
    assert "methods: expected settings whose cost can be computed" in result.output
    assert "Expected sense, got none" in result.output


def test_json_holds_what_was_read_and_every_part_of_a_problem(folder):
    found = json.loads(check("--json", write(folder, text='""')).stdout)
    assert found["datasets"] == [
        {"name": "reviews", "records": 2, "read": 1, "set_aside": {"missing text": 1}}
    ]
    (problem,) = [each for each in found["problems"] if each["severity"] == "error"]
    assert set(problem) == {"file", "field", "expected", "got", "remedy", "severity"}
    assert problem["field"] == "source.max_set_aside"


def test_names_are_compared_across_files(folder):
    file = write(folder)
    assert "a unique name" in check(file, shutil.copy(file, folder / "copy.yaml")).output


def test_a_dataset_on_a_base_that_nobody_declares_is_an_error(folder):
    file = write(folder, public_data="dmeo")
    line = f"{file}: public_data: expected the name of a declared public base, got 'dmeo'. Did you"
    assert line in check(file).output
    # Declared in no folder, but checked together with it.
    beside = written(folder / "base", {"name": "dmeo"}, "PublicData")
    assert check(file, beside).exit_code == 0


def test_a_cohort_may_be_named_in_place_of_its_file(folder, monkeypatch):
    monkeypatch.setattr("dpsynth_assets.cli.cohorts.dataset_folders", lambda: [folder])
    file = write(folder)
    assert check("reviews").output == check(file).output
    told = dpsynth("datasets", "methods", "reviews").output
    assert [line.split("`")[1] for line in told.splitlines() if line[:3] == "## "] == [
        each["method"] for each in DECLARED["methods"]
    ]


LETTER = "I was at the shop on the day that it was closed, and it is not the first time for me."
GERMAN = "Das Päckchen kam drei Tage zu spät, und niemand im Laden wollte mir eine Antwort geben."
CHINESE = "第三天的包裹迟到了，我给商店写了一封信，希望得到退款。"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LETTER, None),
        (GERMAN, "of their words among the commonest of English"),
        (CHINESE, "of their letters in another script"),
        (LETTER * 20, "100% longer texts; half of all texts have"),
    ],
    ids=["English", "German", "Chinese", "long"],
)
def test_what_the_base_cannot_do_with_the_texts_is_a_warning(text, said):
    methods = [{"method": "aug_pe", "settings": {"max_new_tokens": 96}}]
    spec = private(public_data="english", methods=methods)
    found = base_problems(spec, pl.Series([f"{text} {number}" for number in range(40)]))
    assert {problem.severity for problem in found} <= {"warning"}
    told = [problem.got for problem in found]
    assert any(said in got for got in told) if said else not told
    longer = [problem for problem in found if problem.field.startswith("methods.0.settings")]
    assert len(longer) == (text == LETTER * 20)
