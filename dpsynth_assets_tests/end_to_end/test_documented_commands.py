"""Every command that a page or a help shows is typed in a finished home, or named with a reason.

Targets of `make` install, take minutes or serve: test_documents.py sees that they exist.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from dpsynth_assets.cli.main import EXAMPLES, app
from dpsynth_assets.datasets import parse_dataset_file
from dpsynth_assets_tests.end_to_end.conftest import documents
from dpsynth_assets_tests.test_documents import documented

ELSEWHERE = {
    "demo": "takes minutes",
    "run": "takes minutes: `finished_house` is made by it",
    "run letters": "the same",
    "audit run": "takes minutes: attacks/test_audits.py",
    "serve": "answers until it is interrupted: serving",
    "ui": "answers until it is interrupted: web/test_walk.py",
    "benchmark": "needs public corpora and hours: benchmark",
    "advise": "times the base `english`, up to a minute: advice",
    "init my_letters": "times a base of its own, up to a minute: test_init.py",
    "init my_dataset --from reviews.csv --records": "the same",
    "leak-scan": "reads every byte of a home: attacks/test_canaries.py",
    "export letters ctcl": "needs a fine-tuned generator: test_served_releases.py",
    "approve": "needs the key of another person: test_approvals.py",
    "ledger accept": "needs a ledger that lost entries: faults",
}
"""Beginning of commands that are not typed here -> why, and what runs them."""

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(
    r"COHORT|\b(?:tickets|feedback|savings|my_dataset|my_letters|letters_2026_01)|\breviews(?!\.csv)"
)
EVENTS = [{"type": "gaussian", "noise_multiplier": 3.0}]


def shown():
    """The documented commands, with the house's cohort for those of the pages.

    A command's bare name in a text is no command to type, unless its help shows it so.
    """
    examples = [each for block in EXAMPLES.values() for each in block]
    for line in (*documented("dpsynth"), *examples):
        words = [word.strip("[]") for word in shlex.split(line)[1:]]
        if words[:1] != ["init"]:
            words = [NAMED.sub("letters", word) for word in words]
        mention = words[-1:] == ["--older-than"] or words[:1] == ["COMMAND"]
        mention |= len(words) < 2 and line not in examples
        if not mention:
            yield shlex.join(words)


SHOWN = list(dict.fromkeys(shown()))
TYPED = [line for line in SHOWN if not line.startswith(tuple(ELSEWHERE))]


def test_every_reason_is_of_a_documented_command():
    assert all(any(line.startswith(each) for line in SHOWN) for each in ELSEWHERE)


@pytest.fixture(scope="module")
def folder(finished_house, tmp_path_factory):
    """A copy of the finished house with its dataset files, and the files that pages name."""
    root = tmp_path_factory.mktemp("typed") / "copy"
    shutil.copytree(finished_house, root)
    stars = pl.when(pl.col("label") == "billing").then(pl.lit("one star"))
    rows = documents(60, seed=3).with_columns(
        stars.otherwise(pl.lit("five stars")).alias("rating"), customer=pl.lit("a")
    )
    for name in ("reviews.csv", "real.csv"):
        rows.write_csv(root / name)
    rows.write_parquet(root / "corpus.parquet")
    (root / "events.json").write_text(json.dumps(EVENTS))
    return root


def said(*words):
    return CliRunner().invoke(app, list(words), input="y\n", env={"COLUMNS": "200"})


@pytest.mark.slow
@pytest.mark.parametrize("line", TYPED)
def test_a_documented_command_does_what_it_says(line, folder, monkeypatch, tmp_path):
    monkeypatch.setenv("DPSYNTH_HOME", str(folder / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
    monkeypatch.setenv("DPSYNTH_DATASETS", str(folder))
    monkeypatch.chdir(folder)
    words = shlex.split(line)
    if words[0] == "init":
        words += [
            "--to",
            str(tmp_path),
            *([] if "--domain" in words else ["--public-data", "tiny"]),
        ]
    if words[:2] == ["ledger", "restore"]:
        shutil.copy(folder / "home" / "ledger" / "ledger.sqlite", words[2])
    if "--head" in words:
        head = json.loads(
            said("ledger", "verify" if words[0] == "ledger" else "head", "--json").stdout
        )
        words[words.index("--head") + 1] = head.get("head") or head["root"]
    result = said(*words)
    assert result.exit_code == 0, result.output


def test_the_dataset_file_of_the_readme_is_valid(tmp_path):
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "defs.yaml"
    file.write_text(shown)
    (parsed,), problems = parse_dataset_file(file)
    assert not problems
    assert parsed.spec.methods
