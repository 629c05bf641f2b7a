"""What a run may not do unasked: pay without consent, or resume a draw that changed.

`dpsynth run` lists what it would pay for before it begins. What a release is made from (public
models, clusters, earlier releases) is known only when the run comes to it, so a release that looked
paid for may turn out to be another one. In such a run it is refused before the charge.

A killed draw is resumed only where everything that decides it is what it was (`refuse_changed`).
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, PlannedRelease, ReleaseRequest

_agreed: list[frozenset[str]] = []
"""Assets that may be charged, of each run of this process that has a limit; the last one counts."""


class UnagreedChargeError(PrivacyError):
    """A release would be charged without consent; nothing was charged."""


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
    """Refuses a charge without consent; what is reused or free needs no consent.

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


def refuse_changed(
    request: ReleaseRequest, then: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Refuses to resume a draw that something else decides now, in one line.

    Raises:
        PrivacyError: Names the first field that differs; of `records` neither value.
    """
    found = first_difference(then, now)
    if found is None:
        return
    field, *values = found
    expected, got = (json.dumps(value, ensure_ascii=False)[:80] for value in values)
    if field == "records":
        expected, got = "the records", "others, or in another form"
    raise PrivacyError(
        f"{field}: expected {expected}, as when {request.asset} was charged by a run that was "
        f"killed, got {got}. Nothing was read or charged. Restore it, or ask for a release with "
        f"another name than {request.release!r}, which is charged."
    )


def first_difference(then: Any, now: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Finds where two JSON values differ first, the order of names included.

    Returns:
        The path, and both values there; None where they are equal.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in (*then, *(name for name in now if name not in then)):
            place = f"{path}.{name}".removeprefix(".")
            if (found := first_difference(then.get(name), now.get(name), place)) is not None:
                return found
        return None if list(then) == list(now) else (path, list(then), list(now))
    return None if then == now else (path, then, now)
