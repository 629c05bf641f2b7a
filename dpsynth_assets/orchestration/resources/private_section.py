"""Sections of steps that hide error messages if private text may be in them.

Dagster redacts every error of a step (DAGSTER_REDACT_USER_CODE_ERRORS) and logs it unredacted. So
each step runs in one of two sections, which replace an error by one that may be shown: a public one
keeps its message, a private one names its type alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

from dpsynth_assets.files.redaction import (
    is_out_of_memory,
    keep_out_of_core_dumps,
    may_be_shown,
    redacted,
)
from dpsynth_assets.orchestration.dagster_internals import DagsterExecutionInterruptedError
from dpsynth_assets.privacy.errors import BudgetExceededError, PlanChangedError, PrivacyError
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.releases.once import PublicInputError

REFUSED = "dpsynth/refused"
"""Metadata of the failure of a step whose release was refused before a charge."""


def _unmarked() -> Any:
    """The mark of Dagster on an error that it redacts, never set: this one may be shown."""
    return property(lambda _: None, lambda _, __: None)


class Failure(dg.Failure):
    """A failure whose description may be shown as it stands."""

    _redacted_error_uuid = _unmarked()


class StepInterruptedError(DagsterExecutionInterruptedError):
    """The end of a step by Ctrl-C, SIGTERM or the button Terminate."""

    _redacted_error_uuid = _unmarked()


@contextmanager
def private_section(name: str) -> Iterator[None]:
    """Lets refusals through and hides every other error: its text may quote private data.

    The process holds records from here on, so no core of it is dumped. Decorates functions too.
    """
    keep_out_of_core_dumps()
    try:
        yield
    except (BudgetExceededError, PlanChangedError) as refusal:
        raise refused(str(refusal)) from None
    except (PrivacyError, SourceError) as refusal:  # Their messages hold no content of records.
        raise _failure(str(refusal)) from (refusal.__cause__ if may_be_shown() else None)
    except dg.Failure as failure:
        raise failure from None  # What led to it may quote private data.
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        raise _interrupted(name) from None
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        raise _failure(redacted(name, error)) from (error if may_be_shown() else None)


@contextmanager
def public_section(name: str) -> Iterator[None]:
    """Shows an error's own message: nothing private is in reach. Decorates functions too."""
    try:
        yield
    except dg.Failure:
        raise
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        raise _interrupted(name) from None
    except PublicInputError as problem:  # It names its release itself.
        raise _failure(str(problem)) from problem
    except Exception as error:
        shown = f"{name}: {str(error) or type(error).__name__}"
        raise _failure(redacted(name, error) if is_out_of_memory(error) else shown) from error


def refused(description: str) -> Failure:
    """The failure of a step whose release its budget or plan refuses: nothing was charged."""
    return Failure(description=description, allow_retries=False, metadata={REFUSED: True})


def is_refused(event: dg.DagsterEvent) -> bool:
    """Says whether a failed step was refused before a charge."""
    user = event.step_failure_data.user_failure_data
    return user is not None and REFUSED in user.metadata


def _failure(description: str) -> Failure:
    return Failure(description=description, allow_retries=False)


def _interrupted(name: str) -> StepInterruptedError:
    return StepInterruptedError(
        f"{name} was interrupted by Ctrl-C, SIGTERM or Terminate. Run it again: what was paid for "
        "and stored is used."
    )
