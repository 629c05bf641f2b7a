"""The table of real text runs methods through `run_method`, states ε of their labels, and resumes.

On the invented letters, which need no real corpus.
"""

import json
import runpy
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from dpsynth_assets_tests.tiny_models import write_language_model

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "real_text" / "table.py"

pytestmark = pytest.mark.slow


def command(work: Path, *options: str) -> list[str]:
    chosen = ["--sizes", "tiny", "--cohorts", "letters", "--epsilons", "8", "--work", str(work)]
    return [str(SCRIPT), *chosen, "--language-model", str(work / "model"), *options]


def run(work: Path, *options: str) -> str:
    """Runs the script in this process, whose libraries are loaded; returns what it printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setenv("DPSYNTH_HOME", str(work / "home"))
        patch.setattr(sys, "argv", command(work, *options))
        patch.syspath_prepend(str(SCRIPT.parent))
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return said.getvalue()


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """A folder with a finished table: a reference and a method."""
    folder = tmp_path_factory.mktemp("real_text")
    write_language_model(folder / "model")
    run(folder, "--methods", "real_data", "aug_pe")
    return folder


def test_every_corpus_is_kept_with_its_rows_and_scores(work):
    scored = [json.loads(file.read_text()) for file in (work / "scores").iterdir()]
    assert len(scored) == 2
    assert {result["rows"] for result in scored} == {24}
    assert {result["scored_rows"] for result in scored} == {24}
    assert all(0 <= result["accuracy"] <= 1 for result in scored)


def test_epsilon_is_what_the_label_states(work):
    cells = [json.loads(file.read_text()) for file in (work / "cells").iterdir()]
    stated = [cell["guarantee"]["epsilon"] for cell in cells if "guarantee" in cell]
    assert len(stated) == 1
    assert all(0 < epsilon <= 8 for epsilon in stated)
    shown = run(work, "--methods", "aug_pe", "--report")
    assert f"| aug_pe | {stated[0]:.3g} |" in shown


def test_a_second_run_makes_nothing_again(work):
    before = {file: file.stat().st_mtime_ns for file in (work / "rows").iterdir()}
    shown = run(work, "--methods", "real_data", "aug_pe")
    assert {file: file.stat().st_mtime_ns for file in (work / "rows").iterdir()} == before
    assert shown.count("\n| ") == 3  # the head and two lines
