"""What `dpsynth run` shows meanwhile: steps of the whole run, rows of its first corpus alone."""

import io

import dagster as dg
import polars as pl
import pytest
from rich.console import Console
from rich.text import Text

from dpsynth_assets.cli.terminal import progress_display
from dpsynth_assets.orchestration.instance import CHARACTERS, ROWS, follow_run, show_rows
from dpsynth_assets.orchestration.resources import progress as module
from dpsynth_assets.report.cards import released_rows_path
from dpsynth_assets_tests.assets.declared_cases import letters

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def written():
    return io.StringIO()


@pytest.fixture
def console(written):
    return Console(file=written, width=60)


@pytest.fixture
def spec():
    return letters(columns={"labels": ["topic"]}, public_facts={"labels": {"topic": ["a", "b"]}})


# Steps


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [(False, "letters/a/stage: begins\n"), (True, "letters/a/stage 50% half, about")],
)
def test_a_pipe_gets_lines_and_a_terminal_one_that_is_written_over(
    written, monkeypatch, terminal, shown
):
    monkeypatch.setattr(module, "_terminal_bar", [])
    with progress_display(Console(file=written, width=100, force_terminal=terminal)):
        report = module._terminal_bar[0]("letters/a/stage")
        report(0.0, "begins")
        report(0.52, "half")
    said = Text.from_ansi(written.getvalue()).plain
    assert shown in said
    assert terminal or said == shown


# First rows


def publish(spec, folder, texts):
    path = released_rows_path(spec.name, folder)
    path.parent.mkdir(parents=True)
    pl.DataFrame({"text": texts, "topic": ["b"] * len(texts)}).write_parquet(path)


def run_of(spec, console, *, broken=False):
    """A run that writes what nobody may see, then publishes two corpora."""

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
        follow_run(instance, "5f0e0a4c-1111-4a7a-9c39-000000000001", spec, console)
        job = dg.Definitions(assets=parts).resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            instance=instance, run_id="5f0e0a4c-1111-4a7a-9c39-000000000001"
        )


def test_three_rows_of_the_first_corpus_are_shown_once(spec, console, written):
    assert run_of(spec, console).success
    told = written.getvalue().splitlines()
    steps = [line for line in told if line.startswith("Step ")]
    assert [line.partition(": ")[0] for line in steps] == [f"Step {k} of 4" for k in range(1, 5)]
    assert "Step 1 of 4: letters/" in steps[0]
    rows = [line for line in told if line not in steps]
    assert rows[0].startswith("First rows of letters/a, published in ")
    assert rows[1:] == ["  b: w", "  b: x", "  b: y"]
    assert ROWS == 3


def test_what_cannot_be_shown_ends_no_run(spec, console, written):
    assert run_of(spec, console, broken=True).success
    assert "First rows" not in written.getvalue()


def test_rows_are_cut_and_cannot_steer_the_terminal(spec, console, written):
    publish(spec, "a", ["one\n\x1b[2Jtwo [bold]", "x" * (CHARACTERS + 1)])
    show_rows(spec, "a", console)
    _, first, second = written.getvalue().splitlines()
    assert first == "  b: one  [2Jtwo [bold]"
    assert second == "  b: " + "x" * CHARACTERS + " ..."
