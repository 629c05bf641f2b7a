"""What every spending asset shows in the UI. Floats are plotted over time by Dagster."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.events import Event, event_to_json
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, Reservation


def spend_metadata(
    ledger: Ledger,
    reservation: Reservation,
    terms: BudgetTerms,
    *,
    inherited: Sequence[Event] = (),
) -> dict[str, Any]:
    """Privacy spend of one release as asset metadata.

    Args:
        ledger: The ledger that holds the reservation.
        reservation: What was charged or reused.
        terms: The cohort's declared budget.
        inherited: Events of the releases this one builds on, e.g. the histogram behind a corpus.

    Returns:
        Keys under `dpsynth/`; a reused release shows `epsilon_charged` 0 and its stated ε.
    """
    request = reservation.request
    spend = ledger.spend(request.cohort, terms)
    metadata: dict[str, Any] = {
        "dpsynth/guarantee": str(request.guarantee),
        **_cost(reservation, terms, inherited),
        "dpsynth/delta": terms.delta,
        "dpsynth/accountant": terms.accountant,
        "dpsynth/neighboring_relation": str(terms.relation),
        "dpsynth/privacy_unit": terms.unit.describe(),
        "dpsynth/ledger_reservation": reservation.id,
        "dpsynth/reused": reservation.reused,
        "dpsynth/epsilon_cumulative": float(spend.epsilon),
        "dpsynth/epsilon_remaining": float(spend.remaining_epsilon or 0.0),
        "dpsynth/cohort_guarantee": spend.total_guarantee,
    }
    if request.event is not None:
        metadata["dpsynth/accounting_event"] = dg.MetadataValue.json(event_to_json(request.event))
    return metadata


def _cost(
    reservation: Reservation, terms: BudgetTerms, inherited: Sequence[Event]
) -> dict[str, float]:
    """ε of the release alone, with what it builds on, and what this run charged."""
    event = reservation.request.event
    if event is None:
        return {"dpsynth/epsilon_charged": 0.0}
    alone = epsilon_of_fixed([event], terms.delta, terms.accountant)
    return {
        "dpsynth/epsilon": float(alone),
        "dpsynth/epsilon_with_inputs": float(
            epsilon_of_fixed([*inherited, event], terms.delta, terms.accountant)
        ),
        "dpsynth/epsilon_charged": 0.0 if reservation.reused else float(alone),
    }
