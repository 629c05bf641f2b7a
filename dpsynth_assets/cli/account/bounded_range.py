"""Prices of adaptive draws of bounded range, between what any accounting must report."""

import math
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    AsJson,
    AtEpsilon,
    Delta,
    RecordsPerUnit,
    Relation,
    positive,
)
from dpsynth_assets.cli.account.printing import (
    down_significant,
    guarantee,
    refusals,
    say_epsilon,
    show,
    up,
    up_significant,
)
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.batch_terms import context_changes
from dpsynth_assets.privacy.bounded_range import (
    bounded_range_epsilon,
    recursion_is_affordable,
)
from dpsynth_assets.privacy.events import BoundedRangeEvent
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.renyi import check_delta
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.privacy.units import NeighboringRelation


def bounded_range(
    eta: Annotated[float, typer.Option(help="Range η of one draw when one record comes or goes.")],
    count: Annotated[int, typer.Option(help="Draws, each chosen after the ones before.")],
    delta: Delta,
    at_epsilon: AtEpsilon = None,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices adaptive draws of bounded range: optimal composition between its two bounds."""
    with refusals():
        check_delta(delta)
        positive(eta=eta)
        eta *= context_changes(relation, max_records_per_unit, "toggle")
        event = BoundedRangeEvent(eta=eta, count=count)
        result = {
            "mechanism": "bounded-range",
            "eta": eta,
            "count": count,
            **guarantee(relation, max_records_per_unit),
            "rho": float(event.rho),
            "pure_epsilon": eta * count,
            "delta": delta,
            **_bounded_range_epsilons(event, delta),
            "at_epsilon": at_epsilon,
            "delta_at_epsilon": None if at_epsilon is None else _delta_of(event, at_epsilon),
        }
    show(result, _say_bounded_range(result), as_json)


def _bounded_range_epsilons(event: BoundedRangeEvent, delta: float) -> dict[str, float]:
    upper = epsilon_of([event], delta, "tight")
    mu = event.eta / 2.0 * math.sqrt(event.count)  # the Gaussian of equal ρ
    return {
        "epsilon": upper,
        "epsilon_lower": _lower(event, delta),
        "epsilon_zcdp": epsilon_of([event], delta, "zcdp"),
        "epsilon_gaussian_reference": gaussian_epsilon(mu, delta) if mu else 0.0,
    }


def _lower(event: BoundedRangeEvent, delta: float) -> float:
    """What an explicit adversary attains; 0, which says nothing, where that takes minutes."""
    if not recursion_is_affordable(event.eta, event.count, delta):
        return 0.0
    return bounded_range_epsilon(event.eta, event.count, delta, upper=False)


def _delta_of(event: BoundedRangeEvent, epsilon: float) -> float:
    if event.count == 1:
        return one_draw_delta(event.eta, epsilon)
    return float(privacy_profile([event], [epsilon], "tight")[0])


def one_draw_delta(eta: float, epsilon: float) -> float:
    """Computes the worst δ of one η-bounded-range draw at ε >= 0, in closed form.

    The supremum over two-point pairs with losses {t, t − η} is at t = (ε + η)/2.
    """
    if not epsilon >= 0:
        raise ValueError(f"Expected at_epsilon >= 0, got {epsilon}.")
    if epsilon >= eta:
        return 0.0
    exact = math.expm1((epsilon - eta) / 2.0) ** 2 / -math.expm1(-eta)
    return min(1.0, exact * (1.0 + 1e-14))


def _say_bounded_range(result: dict[str, Any]) -> list[str]:
    lower = down_significant(result["epsilon_lower"])
    sentences = [
        say_epsilon(result, accountant="optimal adaptive composition"),
        f"No accounting can report less than ε = {lower}; zCDP reports "
        f"{up(result['epsilon_zcdp'])}, a Gaussian of equal ρ costs "
        f"{up(result['epsilon_gaussian_reference'])}; ε = {up(result['pure_epsilon'])} with δ = 0.",
    ]
    if result["at_epsilon"] is not None:
        delta = up_significant(result["delta_at_epsilon"])
        sentences.append(f"At ε = {declared(result['at_epsilon'])}: δ = {delta}.")
    return sentences
