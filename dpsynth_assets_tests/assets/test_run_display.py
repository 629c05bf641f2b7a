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
    OTHERS,
    ROWS,
    RunProgress,
    follow_run,
    show_rows,
)
from dpsynth_assets.orchestration.resources import progress as module
from dpsynth_assets.report.cards import released_rows_path
from dpsynth_assets_tests.assets.declared_cases import letters

STEPS = ("letters__a__stage", "letters__a__corpus", "letters__report")
EXPECTED = {"a": 100.0, OTHERS: 260.0}


@pytest.fixture
def clock():
    return [0.0]


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


def planned(clock, expected=EXPECTED):
    run = RunProgress(expected, lambda: clock[0])
    run.plan(STEPS)
    return run


# Steps and minutes


def test_the_line_counts_the_steps_of_the_run(clock):
    run = planned(clock, expected={})
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


def test_minutes_left_are_those_of_all_steps_that_are_left(clock):
    run = planned(clock)
    assert run.line() == "Step 0 of 3, about 6 min left"
    run.start(STEPS[0])
    clock[0] = 30.0
    assert run.seconds_left() == 70.0 + 260.0
    run.end(STEPS[0])
    assert run.seconds_left() == 70.0 + 260.0, "a step of the method is still to come"
    run.start(STEPS[1])
    run.end(STEPS[1])
    assert run.seconds_left() == 260.0


def test_the_share_of_a_step_says_more_than_what_was_expected_of_it(clock):
    run = planned(clock)
    run.start(STEPS[0])
    clock[0] = 200.0
    assert run.seconds_left() == 260.0, "longer than expected, and nothing is known"
    run.report(0.25)
    assert run.seconds_left() == 600.0 + 260.0


def test_a_method_that_was_stored_or_failed_counts_no_more(clock):
    run = planned(clock)
    for step in STEPS[:2]:
        run.end(step)
    assert run.seconds_left() == 260.0
    assert run.line().startswith("Step 2 of 3")


def test_nothing_is_told_of_minutes_that_nobody_knows(clock):
    run = planned(clock, expected={"b": 100.0})
    assert run.seconds_left() is None


def test_a_pipe_gets_lines_of_the_run_and_of_its_work(console, written, clock, monkeypatch):
    monkeypatch.setattr(module, "_terminal_bar", [])
    run = planned(clock)
    with progress_display(console, run):
        run.start(STEPS[0])
        report = module._terminal_bar[0]("letters/a/stage")
        report(0.0, "begins")
        report(0.52, "half")
    assert written.getvalue().splitlines() == [
        "Step 1 of 3, about 6 min left: letters/a/stage",
        "letters/a/stage: begins",
    ]


def test_the_run_learns_shares_as_coarse_as_the_log_has_them(console, clock, monkeypatch):
    monkeypatch.setattr(module, "_terminal_bar", [])
    run, shares = planned(clock), []
    monkeypatch.setattr(run, "report", shares.append)
    with progress_display(console, run):
        module._terminal_bar[0]("work")(16 / 130, "")
    assert shares == [0.1]


def test_a_terminal_shows_one_line_of_the_run_below_the_bars(written, clock, monkeypatch):
    monkeypatch.setattr(module, "_terminal_bar", [])
    run = planned(clock)
    console = Console(file=written, width=100, force_terminal=True)
    with progress_display(console, run):
        run.start(STEPS[0])
        module._terminal_bar[0]("letters/a/stage")(0.05, "begun")
    bar, line = Text.from_ansi(written.getvalue()).plain.rstrip().splitlines()[-2:]
    assert bar.startswith("letters/a/stage")
    assert line == "Step 1 of 3, about 6 min left: letters/a/stage"


# First rows


def publish(spec, folder, texts):
    path = released_rows_path(spec.name, folder)
    path.parent.mkdir(parents=True)
    pl.DataFrame({"text": texts, "topic": ["b"] * len(texts)}).write_parquet(path)


def run_of(spec, console, clock, *, broken=False):
    """A run that writes what nobody may see, then publishes two corpora."""
    run = RunProgress(clock=lambda: clock[0])

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


def test_three_rows_of_the_first_corpus_are_shown_once(spec, console, written, clock):
    run, result = run_of(spec, console, clock)
    assert result.success
    told = written.getvalue().splitlines()
    assert told[0].startswith("First rows of letters/a, published in ")
    assert told[1:] == ["  b: w", "  b: x", "  b: y"]
    assert ROWS == 3
    assert run.line() == "Step 4 of 4"


def test_what_cannot_be_shown_ends_no_run(spec, console, written, clock):
    _, result = run_of(spec, console, clock, broken=True)
    assert result.success
    assert written.getvalue() == ""


def test_rows_are_cut_and_cannot_steer_the_terminal(spec, console, written):
    publish(spec, "a", ["one\n\x1b[2Jtwo [bold]", "x" * (CHARACTERS + 1)])
    show_rows(spec, "a", console)
    _, first, second = written.getvalue().splitlines()
    assert first == "  b: one  [2Jtwo [bold]"
    assert second == "  b: " + "x" * CHARACTERS + " ..."
