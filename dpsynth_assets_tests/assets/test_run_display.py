"""What `dpsynth run` shows meanwhile: steps of the whole run, rows of its first corpus alone."""

import io

import dagster as dg
import polars as pl
import pytest
from rich.console import Console
from rich.text import Text

from dpsynth_assets.cli.progress_display import progress_display
from dpsynth_assets.orchestration.instance import (
    CHARACTERS,
    ROWS,
    RunProgress,
    follow_run,
    show_rows,
)
from dpsynth_assets.orchestration.resources import progress as module
from dpsynth_assets.report.cards import released_rows_path
from dpsynth_assets_tests.assets.declared_cases import letters

STEPS = ("letters__a__stage", "letters__a__corpus", "letters__report")


@pytest.fixture
def written():
    return io.StringIO()


@pytest.fixture
def console(written):
    return Console(file=written, width=60)


@pytest.fixture
def spec():
    return letters(
        columns={"labels": ["topic"]},
        public_facts={"labels": {"topic": ["a", "b"]}},
    )


def planned():
    run = RunProgress()
    run.plan(STEPS)
    return run


# Steps


def test_the_line_counts_the_steps_of_the_run():
    run = planned()
    told = [run.line()]
    for step in STEPS:
        run.start(step)
        told.append(run.line())
        run.end(step)
    assert told == [
        "Step 0 of 3",
        "Step 1 of 3: letters/a/stage",
        "Step 2 of 3: letters/a/corpus",
        "Step 3 of 3: letters/report",
    ]
    assert run.line() == "Step 3 of 3"


def test_a_pipe_gets_lines_of_the_run_and_of_its_work(console, written, monkeypatch):
    monkeypatch.setattr(module, "_terminal_bar", [])
    run = planned()
    with progress_display(console, run):
        run.start(STEPS[0])
        report = module._terminal_bar[0]("letters/a/stage")
        report(0.0, "begins")
        report(0.52, "half")
    assert written.getvalue().splitlines() == [
        "Step 1 of 3: letters/a/stage",
        "letters/a/stage: begins",
    ]


def test_a_terminal_shows_one_line_of_the_run_below_the_bars(written, monkeypatch):
    monkeypatch.setattr(module, "_terminal_bar", [])
    run = planned()
    console = Console(file=written, width=100, force_terminal=True)
    with progress_display(console, run):
        run.start(STEPS[0])
        module._terminal_bar[0]("letters/a/stage")(0.05, "begun")
    bar, line = Text.from_ansi(written.getvalue()).plain.rstrip().splitlines()[-2:]
    assert bar.startswith("letters/a/stage")
    assert line == "Step 1 of 3: letters/a/stage"


# First rows


def publish(spec, folder, texts):
    path = released_rows_path(spec.name, folder)
    path.parent.mkdir(parents=True)
    pl.DataFrame({"text": texts, "topic": ["b"] * len(texts)}).write_parquet(path)


def run_of(spec, console, *, broken=False):
    """A run that writes what nobody may see, then publishes two corpora."""
    run = RunProgress()

    def asset(path, body):
        @dg.asset(key=["letters", *path])
        def made():
            body()

        return made

    def internal():
        publish(spec, "candidate", ["INTERNAL"])

    parts = [
        asset(["references", "non_private_corpus"], internal),
        asset(["a", "candidate_corpus"], lambda: None),
        asset(["a", "corpus"], lambda: None if broken else publish(spec, "a", list("wxyz"))),
        asset(["b", "corpus"], lambda: publish(spec, "b", ["second"])),
    ]
    with dg.DagsterInstance.ephemeral() as instance:
        follow_run(instance, "5f0e0a4c-1111-4a7a-9c39-000000000001", spec, run, console)
        job = dg.Definitions(assets=parts).resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=instance, run_id="5f0e0a4c-1111-4a7a-9c39-000000000001"
        )
    return run, result


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


def test_three_rows_of_the_first_corpus_are_shown_once(spec, console, written):
    run, result = run_of(spec, console)
    assert result.success
    told = written.getvalue().splitlines()
    assert told[0].startswith("First rows of letters/a, published in ")
    assert told[1:] == ["  b: w", "  b: x", "  b: y"]
    assert ROWS == 3
    assert run.line() == "Step 4 of 4"


def test_what_cannot_be_shown_ends_no_run(spec, console, written):
    _, result = run_of(spec, console, broken=True)
    assert result.success
    assert written.getvalue() == ""


def test_rows_are_cut_and_cannot_steer_the_terminal(spec, console, written):
    publish(spec, "a", ["one\n\x1b[2Jtwo [bold]", "x" * (CHARACTERS + 1)])
    show_rows(spec, "a", console)
    _, first, second = written.getvalue().splitlines()
    assert first == "  b: one  [2Jtwo [bold]"
    assert second == "  b: " + "x" * CHARACTERS + " ..."
