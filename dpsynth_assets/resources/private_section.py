"""What may be said of a failure: nothing from private sections, everything from public ones."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from dpsynth_assets.privacy.errors import PrivacyError


@contextmanager
def private_section(name: str) -> Iterator[None]:
    """Lets refusals through and hides every other error: its text may quote private data."""
    try:
        yield
    except PrivacyError as refusal:
        raise dg.Failure(description=str(refusal), allow_retries=False) from None
    except dg.Failure:
        raise
    except Exception as error:  # noqa: BLE001 - any error here may carry private text
        raise dg.Failure(
            description=(
                f"{name} failed with {type(error).__name__}. Its message is withheld because it "
                "may quote private data; run `dpsynth datasets check` on the dataset file, or "
                "set DPSYNTH_SHOW_PRIVATE_ERRORS=1 on a machine where private text may be logged."
            ),
            allow_retries=False,
        ) from (error if _may_show_private_errors() else None)


@contextmanager
def public_section(name: str) -> Iterator[None]:
    """Shows an error's own message, which redaction of user code would hide: nothing is private."""
    try:
        yield
    except dg.Failure:
        raise
    except Exception as error:
        raise dg.Failure(description=f"{name}: {error}", allow_retries=False) from error


def _may_show_private_errors() -> bool:
    return os.environ.get("DPSYNTH_SHOW_PRIVATE_ERRORS") == "1"
