"""Two dataset files over the same records: one account, or one line each and nothing charged."""

import pytest

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.datasets import DatasetFileError, PublicDataSpec, parse_dataset_file
from dpsynth_assets.datasets.standing import shared_record_problems
from dpsynth_assets.public_base.making import _trained_generator, read_documents
from dpsynth_assets.records import SourceError
from dpsynth_assets_tests.children import dpsynth
from dpsynth_assets_tests.declared import FIELDS, written


@pytest.fixture
def folder(own_datasets):
    rows = "".join(f"{number},letter number {number} about trains\n" for number in range(20))
    for name in ("letters.csv", "copy.csv"):
        (own_datasets / name).write_text(f"id,text\n{rows}")
    return own_datasets


def declare(folder, name, source="letters.csv", **changes):
    own = {
        "name": name,
        "source": {"path": source if "://" in source else str(folder / source)},
        "cluster_histogram": {},
        "methods": [{"method": "mean_clustered"}],
    }
    return written(folder / f"{name}.yaml", FIELDS | own | changes)


def problems_of(*paths):
    parsed = [parse_dataset_file(path) for path in paths]
    own = [problem for _, problems in parsed for problem in problems]
    return own + shared_record_problems([file for files, _ in parsed for file in files])


def run(*arguments):
    return dpsynth(*arguments, env={"COLUMNS": "300"})


def test_two_files_over_one_source_are_one_line_each_and_neither_may_be_run(folder):
    files = [declare(folder, name) for name in ("one", "two")]
    declare(folder, "other", "copy.csv")
    told = run("datasets", "check", *files)
    lines = [line for line in told.output.splitlines() if "source.path" in line]
    for file, other, line in zip(files, ("two", "one"), sorted(lines), strict=True):
        assert line.startswith(f"{file}: source.path: expected records that no other account pays")
        assert f"letters.csv, which {other!r}" in line
        assert f"shares_records_with: {other}" in line
        assert isinstance(run("plan", other).exception, DatasetFileError | SystemExit)
        with pytest.raises(DatasetFileError, match="no other account pays for"):
            find_cohort(other, to_spend=True)
        assert find_cohort(other).name == other, "reports stay readable"
    assert find_cohort("other", to_spend=True).name == "other"


def test_a_file_is_compared_with_all_that_are_declared(folder):
    declare(folder, "one")
    told = run("datasets", "check", declare(folder, "two"))
    assert told.exit_code == 2
    assert told.output.count("source.path") == 1


@pytest.mark.parametrize("source", ["letters.csv", "*.csv", "link.csv"])
def test_a_public_base_over_a_private_source_is_refused_where_it_is_read(folder, source):
    declare(folder, "one")
    (folder / "link.csv").symlink_to(folder / "letters.csv")
    base = {"name": "base", "source": {"path": str(folder / source)}}
    written(folder / "base.yaml", base, "PublicData")
    told = run("datasets", "check", folder / "base.yaml")
    assert told.exit_code == 2
    assert "base.yaml: source.path: expected text that anyone may read, got" in told.output
    with pytest.raises(SourceError, match="a file of the private dataset 'one'"):
        read_documents(PublicDataSpec.model_validate(base))
    copy = base | {"source": {"path": str(folder / "copy.csv")}}
    assert read_documents(PublicDataSpec.model_validate(copy)).height == 20
    (folder / "broken.yaml").write_text("type: dpsynth_assets.components.PrivateDataset\n")
    with pytest.raises(SourceError, match=r"cannot be read, in .*broken.yaml\. Fix that file"):
        read_documents(PublicDataSpec.model_validate(copy))


def test_pairs_of_a_generator_are_no_private_source(folder):
    declare(folder, "one")
    pairs = {"path": str(folder / "letters.csv"), "condition": "label"}
    generator = {"kind": "pretrained", "model": str(folder), "pairs": pairs}
    base = {"name": "base", "conditional_generator": generator}
    base["source"] = {"path": str(folder / "copy.csv")}
    written(folder / "base.yaml", base, "PublicData")
    told = run("datasets", "check", folder / "base.yaml")
    assert "generator.pairs.path: expected text that anyone may read, got" in told.output
    spec = PublicDataSpec.model_validate(base)
    with pytest.raises(SourceError, match="a file of the private dataset 'one'"):
        _trained_generator(spec, spec.conditional_generator.pairs, report=None)


def test_a_public_base_at_the_address_of_private_records_is_refused_before_it_is_opened(folder):
    address = "hf://datasets/mine/letters/*.parquet"
    declare(folder, "one", address)
    with pytest.raises(SourceError, match="a file of the private dataset 'one'"):
        read_documents(PublicDataSpec.model_validate({"name": "b", "source": {"path": address}}))


@pytest.mark.parametrize("source", ["*.csv", "letters.*", "./letters.csv"])
def test_other_names_of_the_same_file_are_seen(folder, source):
    assert len(problems_of(declare(folder, "one"), declare(folder, "two", source))) == 2


def test_other_files_and_other_addresses_are_no_problem(folder):
    files = [
        declare(folder, "one"),
        declare(folder, "two", "copy.csv"),
        declare(folder, "three", "hf://letters"),
    ]
    assert problems_of(*files) == []


def test_a_shared_account_under_the_same_terms_holds(folder):
    files = [declare(folder, "one"), declare(folder, "two", shares_records_with="one")]
    assert problems_of(*files) == []
    spec = parse_dataset_file(files[1])[0][0].spec
    assert (spec.account, spec.dataset, spec.name) == ("one", "one", "two")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"budget": {"epsilon": 8, "delta": 1e-6}}, "budget.epsilon", "4.0, as in 'one'"),
        ({"budget": {"epsilon": 4, "delta": 1e-7}}, "budget.delta", "1e-06, as in 'one'"),
        (
            {"neighboring_relation": "replace-one"},
            "neighboring_relation",
            "add-remove, as in 'one'",
        ),
        ({"privacy_unit": {"column": "id", "max_records": 2}}, "privacy_unit", "as in 'one', got"),
        ({"shares_records_with": "onne"}, "shares_records_with", "Did you mean 'one'?"),
        (
            {"budget": {"epsilon": 4, "delta": 1e-6, "accountant": "tight"}},
            "budget.accountant",
            "A fixed plan covers only the releases of one",
        ),
        ({"shares_records_with": "two"}, "shares_records_with", "expected another dataset"),
    ],
)
def test_an_account_that_cannot_be_shared_so_is_one_line(folder, changes, field, words):
    own = {"shares_records_with": "one"} | changes
    problems = problems_of(declare(folder, "one"), declare(folder, "two", **own))
    (problem,) = [each for each in problems if each.field == field]
    assert words in str(problem)


def test_an_account_that_is_shared_already_is_not_passed_on(folder):
    files = [
        declare(folder, "one"),
        declare(folder, "two", shares_records_with="one"),
        declare(folder, "three", "copy.csv", shares_records_with="two"),
    ]
    (problem,) = problems_of(*files)
    assert problem.got == "'two', which shares with 'one'"
