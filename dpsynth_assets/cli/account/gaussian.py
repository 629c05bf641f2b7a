"""Prices of Gaussian noise, exact.

Dong, Roth, Su 2022: a Gaussian release is μ-GDP with μ = sensitivity / noise std; T of them are
√T μ-GDP, exactly, and ε at δ follows from the exact curve (Balle-Wang 2018, Theorem 8).
"""

import math
from typing import Annotated, Any, cast

import typer

from dpsynth_assets.cli.account.options import (
    AsJson,
    AtEpsilon,
    Delta,
    RecordsPerUnit,
    Relation,
    at_least_one,
    exactly_one,
    positive,
)
from dpsynth_assets.cli.account.printing import (
    guarantee,
    refusals,
    say_epsilon,
    show,
    up,
    up_significant,
)
from dpsynth_assets.privacy.accounting import zcdp_epsilon, zcdp_epsilon_closed_form
from dpsynth_assets.privacy.gaussian_dp import gaussian_delta, gaussian_epsilon
from dpsynth_assets.privacy.renyi import check_delta
from dpsynth_assets.privacy.rounded import declared, rounded_up
from dpsynth_assets.privacy.units import NeighboringRelation


def gaussian(
    delta: Delta,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise std / largest contribution of one record.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(help="μ of one release when one record comes or goes.")
    ] = None,
    count: Annotated[int, typer.Option(help="Releases over the same records.")] = 1,
    at_epsilon: AtEpsilon = None,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices Gaussian releases exactly. A replaced record moves a sum twice as far."""
    with refusals():
        check_delta(delta)
        one = _mu_of_one(noise_multiplier, mu)
        at_least_one(count=count, max_records_per_unit=max_records_per_unit)
        total = one * relation.records_changed * max_records_per_unit * math.sqrt(count)
        if at_epsilon is not None and not at_epsilon >= 0:
            raise ValueError(f"Expected at_epsilon >= 0, got {at_epsilon}.")
        result: dict[str, Any] = {
            "mechanism": "gaussian",
            "noise_multiplier": noise_multiplier,
            "count": count,
            **guarantee(relation, max_records_per_unit),
            "mu": total,
            "delta": delta,
            **gaussian_epsilons(total, delta),
            "at_epsilon": at_epsilon,
            "delta_at_epsilon": None if at_epsilon is None else gaussian_delta(total, at_epsilon),
        }
    sentences = [
        say_epsilon(result, accountant=f"exact, μ = {rounded_up(total, '.6g')}"),
        f"zCDP reports ε = {up(result['epsilon_zcdp'])}.",
    ]
    if at_epsilon is not None:
        sentences.append(
            f"At ε = {declared(at_epsilon)}: δ = {up_significant(result['delta_at_epsilon'])}."
        )
    show(result, sentences, as_json)


def _mu_of_one(noise_multiplier: float | None, mu: float | None) -> float:
    exactly_one(noise_multiplier=noise_multiplier, mu=mu)
    if mu is None:
        positive(noise_multiplier=cast("float", noise_multiplier))
        mu = 1.0 / cast("float", noise_multiplier)
    positive(mu=mu)
    return mu


def gaussian_epsilons(mu: float, delta: float) -> dict[str, float]:
    """Computes the exact ε of a μ-GDP release beside what zCDP reports."""
    rho = math.nextafter(mu * mu / 2.0, math.inf)
    return {
        "rho": rho,
        "epsilon": gaussian_epsilon(mu, delta),
        "epsilon_zcdp": zcdp_epsilon(rho, delta),
        "epsilon_closed_form": zcdp_epsilon_closed_form(rho, delta),
    }
