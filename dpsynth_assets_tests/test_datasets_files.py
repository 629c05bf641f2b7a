"""Laws of dataset files: each defect is one line with file, field, expected, got and remedy."""

import os

import pytest

from dpsynth_assets import paths
from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    PublicDataSpec,
    dataset_folders,
    parse_dataset_file,
    standing,
)
from dpsynth_assets_tests.declared import FIELDS as ATTRIBUTES, only, written as write


def only_problem(file):
    files, problems = parse_dataset_file(file)
    assert not files
    return only(problems, file)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"budget": {"epsilon": -2, "delta": 1e-6}}, "budget.epsilon", "greater than 0, got -2"),
        ({"budget": {"delta": 1e-6}}, "budget.epsilon", "a value, got none. Add epsilon"),
        ({"methods": []}, "methods", "at least 1 item"),
        ({"held_out_fracton": 0.1}, "held_out_fracton", "Did you mean 'held_out_fraction'?"),
        (
            {"methods": [{"method": "mean_uniform", "budget_shares": 0.5}]},
            "methods.0.budget_shares",
            "Did you mean 'budget_share'?",
        ),
        ({"columns": {"labels": ["k"]}}, "public_facts.labels.k", "the public values"),
        (
            {"columns": {"labels": ["k"]}, "public_facts": {"labels": {"k": [True]}}},
            "public_facts.labels.k.0",
            "Quote it",
        ),
        (
            {"source": {"path": "{{ env.DPSYNTH_DATA_UNSET }}/a"}},
            "attributes",
            "DPSYNTH_DATA_UNSET",
        ),
    ],
)
def test_each_defect_is_one_line_at_its_field(tmp_path, change, field, words):
    problem = only_problem(write(tmp_path / "a.yaml", ATTRIBUTES | change))
    assert problem.field == field
    assert words in str(problem)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"type: [\n", "line 2"),
        (b"type: \xff\xfe\n", "not UTF-8"),
        (b"a: 1\na: 2\n", "written twice at line 2"),
        (b"\tname: x", "line 1"),
        (b"? [a, b]\n: c\n", "unhashable key at line 1"),
        (b"- 1\n- 2\n", "none"),
        (b"type: [a]\n", "['a']"),
        (b"type: dpsynth_assets.components.PrivateDataset\nattributes: [1]\n", "a list"),
    ],
)
def test_a_garbled_file_is_one_line(tmp_path, content, words):
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    assert words in only_problem(file).got


def test_a_missing_file_and_a_file_of_another_type_are_problems(tmp_path):
    assert only_problem(tmp_path / "absent.yaml").got == "none there"
    wrong = write(tmp_path / "a.yaml", ATTRIBUTES, "PrivateDatasets")
    assert "'dpsynth_assets.components.PrivateDataset'" in only_problem(wrong).remedy


def test_folders_are_loaded_whole_and_foreign_components_passed_over(tmp_path, monkeypatch):
    write(tmp_path / "one" / "reviews" / "defs.yaml", ATTRIBUTES | {"public_data": "reviews"})
    write(tmp_path / "two" / "base.yaml", {"name": "reviews"}, "PublicData")
    (tmp_path / "two" / "other.yaml").write_text("type: elsewhere.Component\n")
    monkeypatch.setenv("DPSYNTH_DATASETS", f"{tmp_path / 'two'}{os.pathsep}")
    folders = dataset_folders(tmp_path / "one")
    assert folders == [tmp_path / "one", tmp_path / "two"]
    kinds = {type(file.spec) for file in standing(folders).usable}
    assert kinds == {PrivateDatasetSpec, PublicDataSpec}


@pytest.mark.parametrize(
    "kind",
    [
        "type: dpsynth_assets.components.PrivateDatasett",
        "type: dpsynth-assets.components.PrivateDataset",
        "",
    ],
)
def test_a_misspelt_component_is_a_problem_of_its_folder_and_not_passed_over(tmp_path, kind):
    (tmp_path / "settings.yaml").write_text("replicas: 2\n")
    assert not standing([tmp_path]).problems
    (tmp_path / "a.yaml").write_text(f"{kind}\nattributes: {{name: reviews}}\n")
    (problem,) = standing([tmp_path]).problems
    assert problem.expected == "a dataset component"


def test_two_datasets_may_not_share_a_name(tmp_path):
    write(tmp_path / "a.yaml", ATTRIBUTES)
    write(tmp_path / "b.yaml", ATTRIBUTES)
    found = standing([tmp_path])
    assert not found.usable
    assert {problem.expected for problem in found.problems} == {"a unique name"}


def test_every_problem_of_every_file_is_reported_at_once(tmp_path):
    write(tmp_path / "a.yaml", ATTRIBUTES | {"budget": {"epsilon": 0, "delta": 2}})
    write(tmp_path / "b.yaml", ATTRIBUTES | {"nome": "x"})
    fields = [problem.field for problem in standing([tmp_path]).problems]
    assert fields == ["budget.epsilon", "budget.delta", "nome"]


def test_a_folder_that_is_not_there_is_a_problem(tmp_path):
    (problem,) = standing([tmp_path / "absent"]).problems
    assert "DPSYNTH_DATASETS" in problem.remedy


def test_environment_is_rendered_and_paths_start_at_the_root_or_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_DATA_EPSILON", "2.5")
    (tmp_path / "here.csv").write_text("text\n", encoding="utf-8")
    attributes = ATTRIBUTES | {
        "budget": {"epsilon": "{{ env.DPSYNTH_DATA_EPSILON }}", "delta": "1e-6"},
        "source": {"path": "here.csv"},
    }
    spec = parse_dataset_file(write(tmp_path / "a.yaml", attributes))[0][0].spec
    assert spec.budget.epsilon == 2.5
    assert spec.source.path == str(tmp_path / "here.csv")
    absent = parse_dataset_file(write(tmp_path / "b.yaml", ATTRIBUTES))[0][0].spec
    assert absent.source.path == str(paths.project_root() / "reviews.csv")
    for path in ("*.csv", "hf://datasets/owner/name/*.parquet"):
        found = write(tmp_path / "c.yaml", ATTRIBUTES | {"source": {"path": path}})
        resolved = parse_dataset_file(found)[0][0].spec.source.path
        assert resolved == (path if path.startswith("hf:") else str(tmp_path / "*.csv"))


def test_settings_may_be_shared_by_a_merge_key(tmp_path):
    text = (
        "type: dpsynth_assets.components.PrivateDataset\n"
        "attributes:\n"
        "  name: reviews\n"
        "  source: {path: reviews.parquet}\n"
        "  budget: {epsilon: 1.0, delta: 1.0e-6}\n"
        "  methods:\n"
        "    - {method: mean_uniform, budget_share: .5, settings: &shared {temperature: 1.5}}\n"
        "    - {method: mean_clustered, budget_share: .5, settings: {<<: *shared, clip_bound: 4}}\n"
    )
    (tmp_path / "reviews.yaml").write_text(text)
    ((file,), _) = parse_dataset_file(tmp_path / "reviews.yaml")
    assert file.spec.methods[1].settings == {"temperature": 1.5, "clip_bound": 4}
