"""Gaussian releases.

Dong, Roth, Su 2022: a Gaussian release is μ-GDP with μ = sensitivity / noise std; T of them are
√T μ-GDP, exactly, and ε at δ follows from the exact curve (Balle-Wang 2018, Theorem 8).
"""

import math
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.cli.pricing.commands import (
    Answer,
    AtEpsilon,
    Count,
    Delta,
    Positive,
    PositiveOrNone,
    Settings,
    command,
    exactly_one,
    say_delta,
    say_epsilon,
    up,
    up_significant,
    whom,
)
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.privacy.errors import check_delta, check_positive
from dpsynth_assets.privacy.gaussian_dp import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpsynth_assets.privacy.renyi import zcdp_epsilon, zcdp_epsilon_closed_form, zcdp_rho

ROUNDING = 1.0 + 1e-12
"""Added to every noise found, so that its price in floating point stays within the target."""


@dataclass(frozen=True, kw_only=True)
class Releases(Settings):
    """Gaussian releases over the same records.

    Attributes:
        count: Releases over the same records.
    """

    mechanism = "gaussian"

    count: Count = 1

    def moved(self, one: float) -> float:
        """Adds up the move, or the μ, of one record and release over units and releases."""
        records = self.relation.records_changed * self.max_records_per_unit
        return one * records * math.sqrt(self.count)


@command()
def price(
    settings: Releases,
    delta: Delta,
    noise_multiplier: PositiveOrNone = None,
    mu: PositiveOrNone = None,
    at_epsilon: AtEpsilon = None,
) -> Answer:
    """Prices Gaussian releases exactly. A replaced record moves a sum twice as far.

    Args:
        settings: The settings.
        delta: Public δ of the guarantee, between 0 and 1.
        noise_multiplier: Noise std / largest contribution of one record.
        mu: μ of one release when one record comes or goes.
        at_epsilon: Also print δ at this ε.
    """
    exactly_one(noise_multiplier=noise_multiplier, mu=mu)
    one = mu or 1.0 / (noise_multiplier or math.inf)
    check_positive("mu", one)
    total = settings.moved(one)
    rho = math.nextafter(total * total / 2.0, math.inf)
    result = settings.facts(
        noise_multiplier=noise_multiplier,
        mu=total,
        delta=delta,
        rho=rho,
        epsilon=gaussian_epsilon(total, delta),
        epsilon_zcdp=zcdp_epsilon(rho, delta),
        epsilon_closed_form=zcdp_epsilon_closed_form(rho, delta),
        at_epsilon=at_epsilon,
        delta_at_epsilon=None if at_epsilon is None else gaussian_delta(total, at_epsilon),
    )
    return result, [
        say_epsilon(result, accountant=f"exact, μ = {rounded_up(total, '.6g')}"),
        f"zCDP reports ε = {up(result['epsilon_zcdp'])}.",
        *say_delta(result),
    ]


@command()
def calibrate(
    settings: Releases,
    sensitivity: Positive,
    epsilon: PositiveOrNone = None,
    delta: float | None = None,
    rho: PositiveOrNone = None,
) -> Answer:
    """Finds the noise std for ε and δ, exactly and by zCDP; or for a ρ.

    Args:
        settings: The settings.
        sensitivity: L2 norm by which one record moves it.
        epsilon: ε to be met at δ.
        delta: δ, between 0 and 1.
        rho: zCDP parameter, instead of ε and δ.
    """
    noise = _noise_stds(settings.moved(sensitivity), epsilon, delta, rho)
    target = {"sensitivity": sensitivity, "target_epsilon": epsilon, "delta": delta}
    result = settings.facts(**target, **noise)
    return result, _say_noise(result)


def _noise_stds(
    moved: float, epsilon: float | None, delta: float | None, rho: float | None
) -> dict[str, Any]:
    if rho is not None and epsilon is None and delta is None:
        return {
            "rho": rho,
            "noise_std_zcdp": math.nextafter(moved / math.sqrt(2.0 * rho), math.inf),
        }
    if rho is not None or epsilon is None or delta is None:
        raise ValueError("Expected --epsilon with --delta, or --rho alone. Give one of the two.")
    check_delta(delta)
    within = zcdp_rho(epsilon, delta)
    return {
        "noise_std": moved / gaussian_mu(epsilon, delta) * ROUNDING,
        "noise_std_zcdp": moved / math.sqrt(2.0 * within) * ROUNDING,
        "rho": within,
    }


def _say_noise(result: dict[str, Any]) -> list[str]:
    by_zcdp = up_significant(result["noise_std_zcdp"], 6)
    if "noise_std" not in result:
        return [f"Noise std {by_zcdp} for ρ = {rounded_down(result['rho'])} ({whom(result)})"]
    target = f"ε = {declared(result['target_epsilon'])} at δ = {declared(result['delta'])}"
    return [
        f"Noise std {up_significant(result['noise_std'], 6)} for {target} (exact, {whom(result)})",
        f"By zCDP: {by_zcdp}.",
    ]
