"""Consent to pay: the releases that whoever started a run was shown the price of.

`dpsynth run` lists what it would pay for before it begins. What a release is made from (public
models, clusters, earlier releases) is known only when the run comes to it, so a release that looked
paid for may turn out to be another one. In such a run it is refused before the charge.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, PlannedRelease, ReleaseRequest

_agreed: list[frozenset[str]] = []
"""Assets that may be charged, of each run of this process that has a limit; the last one counts."""


class UnagreedChargeError(PrivacyError):
    """A release would be charged that nobody was asked about; nothing was charged."""


@contextmanager
def paying_only(assets: Collection[str] | None) -> Iterator[None]:
    """Charges no other releases than these while the block runs.

    Args:
        assets: Keys of the assets, as in the ledger; None for no limit.
    """
    if assets is None:
        yield
        return
    _agreed.append(frozenset(assets))
    try:
        yield
    finally:
        _agreed.pop()


def expect_consent(
    ledger: Ledger, request: ReleaseRequest, terms: BudgetTerms, plan: Sequence[PlannedRelease]
) -> None:
    """Refuses a charge that nobody agreed to; what is reused or free needs no consent.

    Raises:
        UnagreedChargeError: The release would be charged, and is not among those agreed to.
    """
    is_free = request.event is not None and is_post_processing(request.event)
    if not _agreed or request.asset in _agreed[-1] or is_free:
        return
    expected = ledger.preview(request, terms, plan)
    if expected.reused or expected.refusal is not None:
        return
    raise UnagreedChargeError(
        f"Expected a release of {request.asset} that was paid for, got one that would be charged: "
        "its inputs are not those of the earlier one, so it was not in the price that was "
        f"confirmed. It would bring the cohort from ε = {epsilon_up(expected.spent_epsilon)} to "
        f"{epsilon_up(expected.total_epsilon)}. Nothing was charged. Add --yes to pay."
    )
