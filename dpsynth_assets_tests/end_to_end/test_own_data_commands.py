"""From a CSV file to a DP corpus in six commands, as docs/own_data.md shows them."""

import json
import re
import shlex
from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets.datasets import parse_dataset_file
from dpsynth_assets.report.cards import LABEL_FILE
from dpsynth_assets_tests.children import dpsynth, python
from dpsynth_assets_tests.declared import written
from dpsynth_assets_tests.end_to_end.conftest import (
    SECRET,
    documents,
    keep_audits,
    public_spec,
    write_public,
)
from dpsynth_assets_tests.prepared import keep_demo_plans

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "make setup",
    "dpsynth init my_dataset --from reviews.csv",
    "dpsynth datasets check",
    "dpsynth plan my_dataset",
    "dpsynth run my_dataset",
    "dpsynth report my_dataset",
)
RECORDS = 400


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A person's folder with a CSV file, and a small public base in place of the demo's."""
    folder = tmp_path_factory.mktemp("own")
    keep_demo_plans(tmp_path_factory, folder / "home")
    write_public(folder)
    private = documents(RECORDS, seed=2, tone="I am upset that ").with_row_index("number")
    private = private.select(
        pl.format("R{}", "number").alias("review_id"), pl.col("label").alias("topic"), "text"
    )
    secret = pl.DataFrame({"review_id": ["S1"], "topic": ["billing"], "text": [SECRET]})
    pl.concat([private, secret]).write_csv(folder / "reviews.csv")
    base = public_spec(folder).model_dump(mode="json", exclude_unset=True)
    written(folder / "datasets" / "public.yaml", base, "PublicData")
    return folder


@pytest.fixture(scope="module")
def told(installation, tmp_path_factory):
    """Runs the commands one after the other, for few rows; returns what each said."""
    unset = ("DAGSTER_HOME", "DPSYNTH_LEDGER_URL", "DPSYNTH_STORE_URL", "DPSYNTH_PUBLISH_URL")
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(installation)
        patch.setenv("DPSYNTH_HOME", str(installation / "home"))
        patch.setenv("DPSYNTH_DATASETS", str(installation / "datasets"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("COLUMNS", "200")
        for name in unset:
            patch.delenv(name, raising=False)
        for command in COMMANDS[1:]:
            arguments = shlex.split(command)[1:]
            if arguments[0] == "init":
                arguments += ["--public-data", "tiny"]  # The demo's own base takes minutes.
            if arguments[0] == "run":  # Nobody sits at this test.
                program = ("-c", "from dpsynth_assets.cli.main import main; main()")
                outputs.append(python(*program, *arguments, "--yes", where=installation))
            else:
                outputs.append(dpsynth(*arguments, code=0).stdout)
            if arguments[0] == "init":
                decide_on_few_rows(installation, tmp_path_factory)
    return outputs


def decide_on_few_rows(folder, tmp_path_factory):
    """Edits the file that `init` wrote, and keeps the audits that its methods will ask for."""
    (file,) = (folder / "datasets").glob("my_dataset/*.yaml")
    said = file.read_text().replace("references: true", "references: false")
    said = re.sub(r"\b(max_new_tokens|rows): \d+", r"\1: 40", said)
    file.write_text(said)
    ((declared, *_), _) = parse_dataset_file(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(folder / "home"))
        keep_audits(tmp_path_factory, folder / "home", declared.spec)


def test_init_names_the_text_and_asks_for_decisions(told):
    assert "Decide, in the file" in told[0]
    assert SECRET not in told[0]


def test_plan_prices_the_corpus_before_anything_is_read(told):
    assert "nothing private was read" in told[2]


def test_run_publishes_a_corpus_with_its_guarantee(told, installation):
    (label,) = (installation / "home" / "released").glob(f"my_dataset/*/{LABEL_FILE}")
    guarantee = json.loads(label.read_text())["guarantee"]
    assert guarantee["type"] == "dp"
    assert 0 < guarantee["epsilon"] <= 4
    rows = pl.read_parquet(label.parent / "data")
    assert rows.height > 0
    assert "text" in rows.columns
    assert not rows["text"].str.contains("Brackenbury").any()


def test_report_shows_rows_spend_and_where_everything_lies(told, installation):
    (label,) = (installation / "home" / "released").glob(f"my_dataset/*/{LABEL_FILE}")
    assert f"{label.parent.name}:" in told[4]
    assert "spent on DP releases" in told[4]
    assert str(label.parent.parent) in told[4]


def test_the_documentation_shows_these_commands():
    text = (ROOT / "docs" / "own_data.md").read_text()
    section = re.search(r"## Your own data in six commands\n(.*?)\n## ", text, re.DOTALL)
    assert section is not None
    shown = re.sub(r"\.venv/bin/", "", section.group(1))
    for command in COMMANDS:
        assert command in shown


def test_the_dataset_file_of_the_readme_is_valid(tmp_path):
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "defs.yaml"
    file.write_text(shown)
    (parsed,), problems = parse_dataset_file(file)
    assert not problems
    assert parsed.spec.methods
