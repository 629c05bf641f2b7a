"""Errors about nothing private are shown as they are; nothing of others is, on page or in log."""

# ruff: noqa: TRY301 - what is raised in handlers is what is tested

import ast
import errno
import logging
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

import dpsynth_assets
from dpsynth_assets.orchestration.resources.live_runs import was_interrupted
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.privacy.errors import BudgetExceededError, LedgerIntegrityError
from dpsynth_assets.records.columns import SourceError

CANARY = "Ottoline Brackenbury keeps bees"
PACKAGE = Path(dpsynth_assets.__file__).parent
SECTIONS = {"public_section", "private_section", "section"}
COMPUTED = {"asset", "asset_check", "multi_asset_check", "sensor", "schedule", "run_status_sensor"}


@pytest.fixture(autouse=True)
def _redacting(monkeypatch):
    monkeypatch.setenv("DAGSTER_REDACT_USER_CODE_ERRORS", "1")
    monkeypatch.delenv("DPSYNTH_SHOW_PRIVATE_ERRORS", raising=False)


def shown(section, fail, capfd, caplog):
    """What the page of the run and the process's own output show of a step that fails."""

    @dg.asset
    @section("Step of the test")
    def step() -> None:
        fail()

    with dg.DagsterInstance.ephemeral() as instance:
        assert not dg.materialize([step], instance=instance, raise_on_error=False).success
        (run,) = instance.get_runs()
        logs = instance.all_logs(run.run_id)
        events = [event.dagster_event for event in logs if event.dagster_event is not None]
        page = "\n".join(dg.serialize_value(event) for event in logs)
        assert was_interrupted(events) == ("was interrupted by" in page)
    return page, page + "".join(capfd.readouterr()) + caplog.text


def while_handling(error, *, because=False):
    """Raises an error in the handler of one about a record; that may be its cause, too."""

    def fail():
        try:
            raise ValueError(CANARY)
        except ValueError as of_a_record:
            if because:
                raise error from of_a_record
            raise error  # noqa: B904 - the context is what is tested

    return fail


def noted():
    error = ValueError("a value")
    error.add_note(CANARY)
    raise error


def in_a_local():
    local = CANARY
    assert not local, f"{local!r} is there"


def asked_again():
    raise dg.RetryRequested(max_retries=0) from ValueError(CANARY)


def raising(error):
    def fail():
        raise error

    return fail


def of_a_tokenizer():
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).encode(CANARY, [CANARY, {CANARY}])


PRIVATE = {
    "a message": raising(ValueError(CANARY)),
    "a key": lambda: {}[CANARY],
    "a path": raising(FileNotFoundError(errno.ENOENT, CANARY, CANARY)),
    "a full disk": raising(OSError(errno.ENOSPC, CANARY, CANARY)),
    "memory": raising(MemoryError(CANARY)),
    "rows of polars": lambda: pl.DataFrame({"text": [CANARY]}).cast(pl.Int64),
    "a cause": while_handling(RuntimeError("outer"), because=True),
    "a context": while_handling(KeyError("a key")),
    "a note": noted,
    "a group": raising(ExceptionGroup(CANARY, [ValueError(CANARY), KeyError(CANARY)])),
    "a local": in_a_local,
    "a refusal's cause": while_handling(BudgetExceededError("None is left."), because=True),
    "a failure's cause": while_handling(dg.Failure("A failure of ours."), because=True),
    "a tokenizer": of_a_tokenizer,
    "an interrupt's context": while_handling(DagsterExecutionInterruptedError()),
    "Ctrl-C's context": while_handling(KeyboardInterrupt(CANARY)),
    "a retry's cause": asked_again,
}


@pytest.mark.parametrize("kind", PRIVATE)
def test_nothing_of_a_record_is_shown_of_any_error(kind, capfd, caplog):
    _, said = shown(private_section, PRIVATE[kind], capfd, caplog)
    for word in CANARY.split():
        assert word not in said


def test_an_error_outside_of_a_section_would_show_the_record(capfd, caplog):
    """The canaries are caught by the sections, not by chance: Dagster's own log shows them."""
    logging.getLogger("dagster.redacted_errors").disabled = False  # Alembic disables all it finds.

    @dg.asset
    def step() -> None:
        raise ValueError(CANARY)

    with dg.DagsterInstance.ephemeral() as instance:
        assert not dg.materialize([step], instance=instance, raise_on_error=False).success
    assert CANARY in "".join(capfd.readouterr()) + caplog.text


NO_RECORD = [
    (LedgerIntegrityError("Entry 7 was altered."), "Entry 7 was altered."),
    (MemoryError(), "out of memory"),
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
    (DagsterExecutionInterruptedError(), "was interrupted by"),
    (KeyboardInterrupt(), "was interrupted by"),
]
SHOWN = {
    private_section: [
        (BudgetExceededError("Expected room for 1, got 0.2."), "Expected room for 1, got 0.2."),
        (SourceError(field="source.path", expected="a", got="b", remedy="C."), "expected a, got b"),
        (ValueError(CANARY), "ValueError. Its message is withheld"),
    ],
    public_section: [
        (ValueError("clusters: expected 48, got 7"), "expected 48, got 7"),
        (AssertionError(), "AssertionError"),
        (FileNotFoundError(2, "No such file", "base.parquet"), "base.parquet"),
    ],
}


@pytest.mark.parametrize(
    ("section", "error", "words"),
    [(section, *case) for section, own in SHOWN.items() for case in (*own, *NO_RECORD)],
)
def test_a_step_shows_what_is_no_record(section, error, words, capfd, caplog):
    page, _ = shown(section, raising(error), capfd, caplog)
    assert words in page
    assert "masked" not in page
    assert section is private_section or "Step of the test" in page


def test_what_is_public_in_a_private_step_is_shown(capfd, caplog):
    def fail():
        with public_section("Opening the text embedder"):
            raise OSError("Expected a model at /models/minilm, got nothing.")

    page, _ = shown(private_section, fail, capfd, caplog)
    assert "Opening the text embedder: Expected a model at /models/minilm" in page


def computed_functions():
    """Every function that Dagster computes, and whether a section holds all of it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(map(is_computed, node.decorator_list)):
                yield f"{path.relative_to(PACKAGE)}:{node.name}", in_section(node)


def is_computed(decorator):
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (
        isinstance(call, ast.Attribute)
        and isinstance(call.value, ast.Name)
        and call.value.id == "dg"
        and call.attr in COMPUTED
    )


def opens_section(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) in SECTIONS


def in_section(function):
    if any(map(opens_section, function.decorator_list)):
        return True
    generates = any(isinstance(node, ast.Yield) for node in ast.walk(function))
    first = function.body[0]
    return generates and isinstance(first, ast.With) and opens_section(first.items[0].context_expr)


RAISES_NOTHING_ELSE = {"orchestration/components/refused.py:refused"}
"""Its body is one failure with the problems of a dataset file."""


def test_every_step_check_sensor_and_schedule_is_in_a_section():
    found = dict(computed_functions())
    assert len(found) >= 27
    outside = {name for name, covered in found.items() if not covered}
    assert outside == RAISES_NOTHING_ELSE
