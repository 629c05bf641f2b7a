"""A released value and its cost, inseparable."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import GuaranteeType

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
