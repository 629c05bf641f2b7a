"""Laws of `dpsynth datasets`: exit codes, and lines a machine or a person can read."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from dpsynth_assets.cli import datasets as command

SECRET = "Zaphod has gout"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of dataset files in place of the package's own."""
    monkeypatch.setattr(command, "dataset_folders", lambda: [tmp_path])
    return tmp_path


def write(folder, name="reviews", text="hello", **changes):
    (folder / f"{name}.csv").write_text(f"text\n{text}\n{SECRET}\n", encoding="utf-8")
    attributes = {
        "name": name,
        "source": {"path": str(folder / f"{name}.csv")},
        "budget": {"epsilon": 4, "delta": 1e-6},
        "methods": [{"method": "mean_uniform"}],
    }
    document = {
        "type": "dpsynth_assets.components.PrivateDataset",
        "attributes": attributes | changes,
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def run(*arguments):
    return CliRunner().invoke(command.app, [str(argument) for argument in arguments])


def test_a_sound_folder_passes_and_foreign_components_are_passed_over(folder):
    write(folder)
    (folder / "other.yaml").write_text("type: elsewhere.Thing\n", encoding="utf-8")
    result = run("check")
    assert result.exit_code == 0, result.output
    assert result.output.strip() == "1 files, 0 errors, 0 warnings"


def test_warnings_pass_and_errors_do_not(folder):
    assert run("check", write(folder, text='""')).exit_code == 0
    broken = write(folder, source={"path": "absent.csv"})
    result = run("check", broken)
    assert result.exit_code == 1
    assert f"{broken}: source.path: expected a file" in result.output
    assert "gout" not in result.output


def test_an_unknown_method_or_setting_is_an_error(folder):
    result = run(
        "check", write(folder, methods=[{"method": "mean_uniform", "settings": {"zz": 1}}])
    )
    assert result.exit_code == 1
    assert "methods.0" in result.output
    assert "zz" in result.output
    assert run("check", write(folder, methods=[{"method": "no_such"}])).exit_code == 1


def test_json_holds_every_part_of_a_problem(folder):
    result = run("check", "--json", write(folder, budget={"epsilon": 0, "delta": 1e-6}))
    (problem,) = json.loads(result.stdout)
    assert set(problem) == {"file", "field", "expected", "got", "remedy", "severity"}
    assert (problem["field"], problem["severity"]) == ("budget.epsilon", "error")


def test_names_are_compared_across_files(folder):
    first = write(folder)
    second = folder / "copy.yaml"
    second.write_bytes(first.read_bytes())
    result = run("check", first, second)
    assert result.exit_code == 1
    assert "a name of its own" in result.output


def test_list_shows_what_each_dataset_promises(folder):
    write(folder)
    (row,) = json.loads(run("list", "--json").stdout)
    assert row["name"] == "reviews"
    assert (row["epsilon"], row["delta"], row["privacy_unit"]) == (4.0, 1e-6, "one record")
    assert "reviews" in run("list").output
