"""What a guarantee protects, the kinds that the ledger keeps apart, and a value with its cost.

Numbers of different kinds are never summed. A charge records the facts that sensitivities rest on
for its label; they are no part of a release's identity: a value that was paid for is not paid again
because another machine would compute it otherwise. This module needs no database: methods name
these facts where no ledger is installed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from dpsynth_assets.privacy.events import Event


class NeighboringRelation(StrEnum):
    """The relation by which two private datasets are neighbours.

    ADD_REMOVE: one has one record more. ZERO_OUT: one record is replaced by a null record that
    keeps its place (the number of records is public). REPLACE_ONE: one record has other content;
    the declared ids of a record and of its unit are kept, hence public.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def records_changed(self) -> int:
        """Contributions that differ between neighbours: a replacement removes one and adds one."""
        return 2 if self is NeighboringRelation.REPLACE_ONE else 1


@dataclass(frozen=True, kw_only=True)
class PrivacyUnit:
    """Whose presence is hidden: one record, or every record that shares a value of `column`.

    Attributes:
        column: Column that names the unit, e.g. `customer_id`; None when the unit is one record.
        max_records: Bound on the records one unit contributes, enforced before any mechanism.
    """

    column: str | None = None
    max_records: int = 1

    def __post_init__(self) -> None:
        """Refuses a bound below one, and a bound without a unit column."""
        if self.max_records < 1:
            raise ValueError(f"Expected max_records >= 1, got {self.max_records}.")
        if self.column is None and self.max_records != 1:
            raise ValueError(
                f"Expected max_records=1 where the unit is one record, got {self.max_records}. "
                "Name the unit's column, or drop max_records."
            )

    def describe(self) -> str:
        """Says the unit in words, for cards and statements."""
        if self.column is None:
            return "one record"
        return f"all records with the same {self.column!r} (at most {self.max_records} are used)"


class GuaranteeType(StrEnum):
    """The promise of a release.

    DP: (ε, δ)-differential privacy, for every dataset and every event.
    EX_POST: a data- and output-dependent bound (Amin 2025, Definition 2); not (ε, δ)-DP, and the
    bound itself is not sanitised.
    SECRET: (p, r)-secret protection; kept as dominating pairs.
    NONE: no guarantee; the value must stay internal.
    """

    DP = "dp"
    EX_POST = "ex-post"
    SECRET = "secret"
    NONE = "none"


RESTS_ON = "rests_on"
"""Parameter of a charge that holds these facts."""

EMBEDDINGS = "embeddings"
"""The way in which private texts were embedded."""

GRADIENTS = "gradients"
"""The records that shared a pass when gradients were clipped."""

STATES = "states"
"""The records that shared a pass when hidden states were read."""

SELF_TEST = "self_test"
"""The test in which no row of a pass moved another's logits, where rounding is not charged."""

MEASURED_SLACK = "measured_slack"
"""The most that a row of a pass moved another's logits, where they are rounded below float32."""


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a release.

    Attributes:
        guarantee: Which ledger column the cost belongs to.
        event: Accounting event; required for DP, absent for a purely ex-post release.
        ex_post_epsilon: Realised data-dependent bound of an ex-post release. It is itself a
            function of private data and is not sanitised: internal use only.
    """

    guarantee: GuaranteeType
    event: Event | None = None
    ex_post_epsilon: float | None = None

    def __post_init__(self) -> None:
        """Refuses a cost that does not say what its guarantee needs."""
        if self.guarantee is GuaranteeType.DP and self.event is None:
            raise ValueError("Expected an accounting event for a DP cost, got none.")
        if self.ex_post_epsilon is not None and self.guarantee is not GuaranteeType.EX_POST:
            raise ValueError(
                f"Expected ex_post_epsilon only for an ex-post cost, got a {self.guarantee} cost."
            )


@dataclass(frozen=True, kw_only=True)
class Release(Generic[T]):
    """The value and the cost that every mechanism returns. A bare value is never released."""

    value: T
    cost: Cost
