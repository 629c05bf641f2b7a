"""Bare Gaussian releases: their exact price, and the noise that a target needs by four rules.

Dong, Roth, Su 2022: a Gaussian release is μ-GDP with μ = sensitivity / noise std; T of them are
√T μ-GDP, exactly, and ε at δ follows from the exact curve (Balle-Wang 2018, Theorem 8).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from dpsynth_assets.cli.pricing.commands import (
    Answer,
    AtEpsilon,
    Delta,
    Settings,
    at_least_one,
    command,
    exactly_one,
    positive,
    say_delta,
    say_epsilon,
    unit,
    up,
    up_significant,
)
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.privacy.errors import check_delta
from dpsynth_assets.privacy.gaussian_dp import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpsynth_assets.privacy.renyi import zcdp_epsilon, zcdp_epsilon_closed_form, zcdp_rho

ROUNDING = 1.0 + 1e-12
"""Added to every noise found, so that its price in floating point stays within the target."""


@dataclass(frozen=True, kw_only=True)
class Releases(Settings):
    """Gaussian releases over the same records."""

    count: Annotated[int, typer.Option(help="Releases over the same records.")] = 1

    def moved(self, one: float) -> float:
        """Adds up the move, or the μ, of one record and release over units and releases."""
        at_least_one(count=self.count, max_records_per_unit=self.max_records_per_unit)
        records = self.relation.records_changed * self.max_records_per_unit
        return one * records * math.sqrt(self.count)


@command(Releases, "delta noise_multiplier mu count at_epsilon relation max_records_per_unit")
def price(
    settings: Releases,
    delta: Delta,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise std / largest contribution of one record.")
    ] = None,
    mu: Annotated[
        float | None, typer.Option(help="μ of one release when one record comes or goes.")
    ] = None,
    at_epsilon: AtEpsilon = None,
) -> Answer:
    """Prices Gaussian releases exactly. A replaced record moves a sum twice as far."""
    check_delta(delta)
    total = settings.moved(_mu_of_one(noise_multiplier, mu))
    if at_epsilon is not None and not at_epsilon >= 0:
        raise ValueError(f"Expected at_epsilon >= 0, got {at_epsilon}.")
    rho = math.nextafter(total * total / 2.0, math.inf)
    result: dict[str, Any] = {
        "mechanism": "gaussian",
        "noise_multiplier": noise_multiplier,
        **settings.facts("count"),
        "mu": total,
        "delta": delta,
        "rho": rho,
        "epsilon": gaussian_epsilon(total, delta),
        "epsilon_zcdp": zcdp_epsilon(rho, delta),
        "epsilon_closed_form": zcdp_epsilon_closed_form(rho, delta),
        "at_epsilon": at_epsilon,
        "delta_at_epsilon": None if at_epsilon is None else gaussian_delta(total, at_epsilon),
    }
    return result, [
        say_epsilon(result, accountant=f"exact, μ = {rounded_up(total, '.6g')}"),
        f"zCDP reports ε = {up(result['epsilon_zcdp'])}.",
        *say_delta(result),
    ]


def _mu_of_one(noise_multiplier: float | None, mu: float | None) -> float:
    exactly_one(noise_multiplier=noise_multiplier, mu=mu)
    if mu is None:
        positive(noise_multiplier=cast("float", noise_multiplier))
        mu = 1.0 / cast("float", noise_multiplier)
    positive(mu=mu)
    return mu


@command(Releases, "sensitivity epsilon delta rho count relation max_records_per_unit")
def calibrate(
    settings: Releases,
    sensitivity: Annotated[float, typer.Option(help="L2 norm by which one record moves it.")],
    epsilon: Annotated[float | None, typer.Option(help="ε to be met at δ.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, between 0 and 1.")] = None,
    rho: Annotated[float | None, typer.Option(help="zCDP parameter, instead of ε and δ.")] = None,
) -> Answer:
    """Finds the noise std for ε and δ exactly, by the classical rule and by zCDP; or for a ρ."""
    positive(sensitivity=sensitivity)
    result = {
        "mechanism": "gaussian",
        "sensitivity": sensitivity,
        **settings.facts("count"),
        "target_epsilon": epsilon,
        "delta": delta,
        **_noise_stds(settings.moved(sensitivity), epsilon, delta, rho),
    }
    return result, _say_noise(result)


def _noise_stds(
    moved: float, epsilon: float | None, delta: float | None, rho: float | None
) -> dict[str, Any]:
    if rho is not None and epsilon is None and delta is None:
        positive(rho=rho)
        return {
            "rho": rho,
            "noise_std_zcdp": math.nextafter(moved / math.sqrt(2.0 * rho), math.inf),
        }
    if rho is not None or epsilon is None or delta is None:
        raise ValueError("Expected --epsilon with --delta, or --rho alone. Give one of the two.")
    check_delta(delta)
    positive(epsilon=epsilon)
    within = zcdp_rho(epsilon, delta)
    return {
        "noise_std": moved / gaussian_mu(epsilon, delta) * ROUNDING,
        "noise_std_classical": classical_noise_std(moved, epsilon, delta),
        **classical_check(epsilon, delta),
        "noise_std_zcdp": moved / math.sqrt(2.0 * within) * ROUNDING,
        "rho": within,
        # ρ = ε²/8 of an ε-bounded-range draw equals Δ²/(2σ²) at σ = 2Δ/ε
        "noise_std_of_equal_rho_bounded_range": 2.0 * moved / epsilon,
    }


def _say_noise(result: dict[str, Any]) -> list[str]:
    whom = f"{result['relation']} of {unit(result['max_records_per_unit'])}"
    by_zcdp = up_significant(result["noise_std_zcdp"], 6)
    if "noise_std" not in result:
        return [f"Noise std {by_zcdp} for ρ = {rounded_down(result['rho'])} ({whom})"]
    target = f"ε = {declared(result['target_epsilon'])} at δ = {declared(result['delta'])}"
    return [
        f"Noise std {up_significant(result['noise_std'], 6)} for {target} (exact, {whom})",
        f"By zCDP: {by_zcdp}. With the ρ of one draw of range "
        f"{declared(result['target_epsilon'])}: "
        f"{up_significant(result['noise_std_of_equal_rho_bounded_range'], 6)}.",
        say_classical(result["noise_std_classical"], result),
    ]


def classical_noise_std(sensitivity: float, epsilon: float, delta: float) -> float:
    """Evaluates Δ √(2 ln(1.25/δ)) / ε, which is proved for ε <= 1 only.

    Dwork and Roth 2014, Theorem A.1. From ε of about 8 on it is below the exact noise: too little.
    """
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def classical_check(epsilon: float, delta: float) -> dict[str, Any]:
    """Computes what the classical noise really gives at (`epsilon`, `delta`)."""
    mu = 1.0 / classical_noise_std(1.0, epsilon, delta)
    true_delta = gaussian_delta(mu, epsilon)
    return {
        "classical_formula_applies": epsilon <= 1.0,
        "classical_delta": true_delta,
        "classical_under_noises": true_delta > delta,
    }


def say_classical(noise_std: float, check: dict[str, Any]) -> str:
    """Says what the classical formula asks for, and that it is no guarantee where it is none."""
    words = f"The classical formula asks for {up_significant(noise_std, 6)}"
    if check["classical_under_noises"]:
        real = up_significant(check["classical_delta"])
        return f"{words}: too little (δ would be {real}); it is proved for ε <= 1 only."
    proved = "" if check["classical_formula_applies"] else "; it is proved for ε <= 1 only"
    return f"{words}{proved}."
