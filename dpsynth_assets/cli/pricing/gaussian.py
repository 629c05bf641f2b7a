"""Gaussian releases, and a histogram of noisy counts.

Dong, Roth, Su 2022: a Gaussian release is μ-GDP with μ = sensitivity / noise std; T of them are
√T μ-GDP, exactly, and ε at δ follows from the exact curve (Balle-Wang 2018, Theorem 8). Noise on
counts is whole numbers, with a privacy loss of its own.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import typer

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    AtEpsilon,
    Count,
    Delta,
    Positive,
    PositiveOrNone,
    Settings,
    TargetEpsilon,
    command,
    exactly_one,
    say_delta,
    say_epsilon,
    up,
    up_significant,
    whom,
)
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.directed_rounding import declared, rounded_down, rounded_up
from dpsynth_assets.privacy.errors import check_delta, check_positive
from dpsynth_assets.privacy.events import DiscreteLaplaceEvent, Event
from dpsynth_assets.privacy.gaussian_dp import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpsynth_assets.privacy.histogram import (
    NoisyHistogram,
    l1_sensitivity,
    l2_sensitivity,
    scale_for,
)
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon, zcdp_epsilon_closed_form, zcdp_rho

ROUNDING = 1.0 + 1e-12
"""Added to every noise found, so that its price in floating point stays within the target."""

LARGEST_TABULATED = 100.0
"""Pure ε above which no privacy-loss distribution is tabulated: δ buys nothing there."""


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


@dataclass(frozen=True, kw_only=True)
class Histogram(Settings):
    """One noisy histogram over public bins.

    Attributes:
        scale: Noise scale in counts (Gaussian: std).
        noise: Noise.
    """

    mechanism = "histogram"

    scale: Annotated[float, typer.Option("--scale", "--noise-std")]
    noise: Literal["laplace", "gaussian"] = "laplace"

    def event(self) -> Event:
        """Prices the histogram."""
        return NoisyHistogram(**vars(self)).event()

    @property
    def pure_epsilon(self) -> float | None:
        """ε with δ = 0, where there is one."""
        event = self.event()
        return float_up(event.epsilon) if isinstance(event, DiscreteLaplaceEvent) else None

    def epsilon(self, delta: float, accountant: str) -> float:
        """Computes ε of one release; integer Gaussian noise has an exact curve of its own."""
        if (self.pure_epsilon or 0.0) > LARGEST_TABULATED:
            accountant = "zcdp"  # the smaller of it and the pure ε is what `tight` would report
        return epsilon_of_fixed([self.event()], delta, accountant)


@command()
def price_histogram(settings: Histogram, delta: Delta, accountant: Accountant = "tight") -> Answer:
    """Prices one noisy histogram over public bins; one release is a fixed plan, hence `tight`."""
    pure = settings.pure_epsilon
    result = settings.facts(
        rho=float_up(settings.event().rho),
        pure_epsilon=pure,
        delta=delta,
        accountant=accountant,
        epsilon=settings.epsilon(delta, accountant),
    )
    alone = "" if pure is None else f"; ε = {up(pure)} with δ = 0 if nothing else is released"
    return result, [f"{say_epsilon(result)}{alone}"]


@command(without="scale")
def calibrate_histogram(
    settings: Histogram,
    epsilon: TargetEpsilon,
    delta: Delta,
    noise: Literal["laplace", "gaussian"] = "gaussian",
) -> Answer:
    """Finds the noise of one histogram, Laplace (pure ε) or Gaussian (its own loss on counts).

    Args:
        settings: The settings.
        epsilon: ε that must not be exceeded at δ.
        delta: Public δ of the guarantee, between 0 and 1.
        noise: Noise.
    """
    # The least noise, with the exact privacy loss of integer noise.
    unit = settings.relation, settings.max_records_per_unit
    scale = scale_for(epsilon, delta, noise, *unit, "tight")
    found = replace(settings, noise=noise, scale=scale)
    cost = found.epsilon(delta, "tight")
    rules = _scales(found, epsilon, delta)
    result = found.facts(target_epsilon=epsilon, delta=delta, epsilon=cost, **rules)
    alone = " (pure: δ = 0 when released alone)" if noise == "laplace" else ""
    said = say_epsilon(result, accountant="exact")
    return result, [f"Scale {up_significant(scale, 6)} in records: {said}{alone}"]


def _scales(found: Histogram, epsilon: float, delta: float) -> dict[str, float]:
    """What other rules ask for."""
    if found.noise == "laplace":
        return {"sensitivity": float(l1_sensitivity(found.relation, found.max_records_per_unit))}
    sensitivity = l2_sensitivity(found.relation, found.max_records_per_unit)
    return {
        "sensitivity": sensitivity,
        "scale_continuous_noise": max(1.0, sensitivity / gaussian_mu(epsilon, delta)),
        "scale_zcdp": max(1.0, sensitivity / math.sqrt(2.0 * zcdp_rho(epsilon, delta))),
    }
