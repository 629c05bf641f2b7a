"""Errors of the privacy kernel, and refusals that its modules share.

Each says what was expected, what came, and what to do.

PrivacyError
├── BudgetExceededError         a release would overspend its cohort
├── PlanChangedError            a fixed-plan cohort was asked for something outside its plan
├── UndeclaredPublicFactError   a mechanism needs a fact that is not declared public
├── UnaccountedReleaseError     private data was asked for without an open reservation
└── LedgerIntegrityError        the ledger's chain does not verify
"""

import math


class PrivacyError(Exception):
    """Base of every refusal made to protect a guarantee. Messages never contain private data."""


class BudgetExceededError(PrivacyError):
    """The release would overspend the cohort; nothing private was read."""


class PlanChangedError(PrivacyError):
    """The cohort's budget is fixed to a plan, and the request is not part of that plan."""


class UndeclaredPublicFactError(PrivacyError):
    """A mechanism needs a fact that the dataset file does not declare public."""


class UnaccountedReleaseError(PrivacyError):
    """Private data was requested without a reservation in the ledger."""


class LedgerIntegrityError(PrivacyError):
    """An entry was altered, removed or reordered."""


def check_positive(name: str, value: float) -> None:
    """Raises ValueError unless 0 < value < inf."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"Expected 0 < {name} < inf, got {value}.")


def check_at_least(least: float, **values: float) -> None:
    """Raises ValueError unless every named value is finite and at least `least`."""
    for name, value in values.items():
        if not (value >= least and math.isfinite(value)):
            raise ValueError(f"Expected a finite {name} >= {least}, got {value}.")


def check_probability(name: str, value: float) -> None:
    """Raises ValueError unless 0 < value < 1."""
    if not 0 < value < 1:
        raise ValueError(f"Expected 0 < {name} < 1, got {value}.")


def check_delta(delta: float) -> None:
    """Raises ValueError unless 0 < δ < 1."""
    check_probability("delta", delta)


FORMAT = 1
"""Raised where a ledger, a store or a home is written in another way, or means something else."""


class FormatError(PrivacyError):
    """What was opened is of another format: it is neither read nor written to."""


def require_format(place: object, found: object) -> None:
    """Refuses what another version wrote: read by this one, it might seem to have spent less.

    Args:
        place: What was opened, as a person names it; without a password.
        found: The format that it says it has; None where it says none.

    Raises:
        FormatError: It is not this one.
    """
    if str(found) != str(FORMAT):
        raise FormatError(
            f"Expected format {FORMAT} in {place}, got {'none' if found is None else found}: it is "
            "left as it is. Use the version of dpsynth_assets that wrote it, or begin a new "
            "home (DPSYNTH_HOME) for records that it has not charged."
        )
