"""Noisy counts, one histogram and the votes of private evolution: their price and their noise."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import typer

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    Delta,
    Settings,
    TargetEpsilon,
    command,
    positive,
    say_epsilon,
    up,
    up_significant,
)
from dpsynth_assets.cli.pricing.gaussian import classical_noise_std
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, gaussian_mu_of
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.errors import check_delta
from dpsynth_assets.privacy.events import DiscreteLaplaceEvent, Event
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from dpsynth_assets.privacy.histogram import (
    NoisyHistogram,
    l1_sensitivity,
    l2_sensitivity,
    scale_for,
)
from dpsynth_assets.privacy.renyi import float_up, zcdp_rho
from dpsynth_assets.privacy.voting import GaussianVoting, voting_noise_std

LARGEST_TABULATED = 100.0
"""Pure ε above which no privacy-loss distribution is tabulated: δ buys nothing there."""

Noise = Annotated[Literal["laplace", "gaussian"], typer.Option(help="Noise.")]


@dataclass(frozen=True, kw_only=True)
class Histogram(Settings):
    """One noisy histogram over public bins."""

    scale: Annotated[
        float, typer.Option("--scale", "--noise-std", help="Noise scale in counts (Gaussian: std).")
    ]
    noise: Noise = "laplace"

    def event(self) -> Event:
        """Prices the histogram."""
        return NoisyHistogram(
            noise=self.noise,
            scale=self.scale,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        ).event()

    def epsilon(self, delta: float, accountant: str) -> float:
        """Computes ε of one release; integer Gaussian noise has an exact curve of its own."""
        check_delta(delta)
        event = self.event()
        if (_pure_epsilon(event) or 0.0) > LARGEST_TABULATED:
            accountant = "zcdp"  # the smaller of it and the pure ε is what `tight` would report
        return epsilon_of_fixed([event], delta, accountant)

    def within(self, epsilon: float, delta: float) -> "Histogram":
        """Finds the least noise, with the exact privacy loss of integer noise."""
        unit = self.relation, self.max_records_per_unit
        return replace(self, scale=scale_for(epsilon, delta, self.noise, *unit, "tight"))


def _pure_epsilon(event: Event) -> float | None:
    """ε with δ = 0, where the event has one."""
    return float_up(event.epsilon) if isinstance(event, DiscreteLaplaceEvent) else None


@command(Histogram, "scale delta noise accountant relation max_records_per_unit")
def price_histogram(settings: Histogram, delta: Delta, accountant: Accountant = "tight") -> Answer:
    """Prices one noisy histogram over public bins; one release is a fixed plan, hence `tight`."""
    event = settings.event()
    pure = _pure_epsilon(event)
    result = {
        "mechanism": "histogram",
        **settings.facts("noise scale"),
        "rho": float_up(event.rho),
        "pure_epsilon": pure,
        "delta": delta,
        "accountant": accountant,
        "epsilon": settings.epsilon(delta, accountant),
    }
    alone = "" if pure is None else f"; ε = {up(pure)} with δ = 0 if nothing else is released"
    return result, f"{say_epsilon(result)}{alone}"


@command(Histogram, "epsilon delta noise relation max_records_per_unit")
def calibrate_histogram(
    settings: Histogram, epsilon: TargetEpsilon, delta: Delta, noise: Noise = "gaussian"
) -> Answer:
    """Finds the noise of one histogram, Laplace (pure ε) or Gaussian (its own loss on counts)."""
    check_delta(delta)
    positive(epsilon=epsilon)
    found = replace(settings, noise=noise).within(epsilon, delta)
    result = {
        "mechanism": "histogram",
        "noise": noise,
        "target_epsilon": epsilon,
        **settings.facts(""),
        **_scales(found, epsilon, delta),
        "delta": delta,
        "epsilon": found.epsilon(delta, "tight"),
    }
    alone = " (pure: δ = 0 when released alone)" if noise == "laplace" else ""
    cost = say_epsilon(result, accountant="exact")
    return result, f"Scale {up_significant(found.scale, 6)} in records: {cost}{alone}"


def _scales(found: Histogram, epsilon: float, delta: float) -> dict[str, float | bool]:
    """Lists the scale beside what other rules ask for."""
    if found.noise == "laplace":
        sensitivity = float(l1_sensitivity(found.relation, found.max_records_per_unit))
        return {"sensitivity": sensitivity, "scale": found.scale}
    sensitivity = l2_sensitivity(found.relation, found.max_records_per_unit)
    return {
        "sensitivity": sensitivity,
        "scale": found.scale,
        "scale_continuous_noise": max(1.0, sensitivity / gaussian_mu(epsilon, delta)),
        "scale_zcdp": max(1.0, sensitivity / math.sqrt(2.0 * zcdp_rho(epsilon, delta))),
        "scale_classical": classical_noise_std(sensitivity, epsilon, delta),
        "classical_formula_applies": epsilon <= 1.0,
    }


@dataclass(frozen=True, kw_only=True)
class Votes(Settings):
    """All rounds of private evolution's noisy votes."""

    noise_std: Annotated[float, typer.Option(help="Std of the noise on each count, in votes.")]
    iterations: Annotated[
        int, typer.Option(min=1, max=10**6, help="Rounds of votes, all over the same records.")
    ]
    votes_per_record: Annotated[int, typer.Option(help="Votes one record casts in one round.")] = 1

    def event(self) -> Event:
        """Prices all rounds."""
        return GaussianVoting(**vars(self)).event

    def within(self, epsilon: float, delta: float) -> "Votes":
        """Finds the least noise of all rounds."""
        fixed = {name: value for name, value in vars(self).items() if name != "noise_std"}
        found = voting_noise_std(target_epsilon=epsilon, delta=delta, accountant="tight", **fixed)
        return replace(self, noise_std=found)


@command(Votes, "noise_std iterations delta votes_per_record relation max_records_per_unit")
def price_voting(settings: Votes, delta: Delta) -> Answer:
    """Prices the noisy nearest-neighbour votes of private evolution (Aug-PE), all rounds."""
    event = settings.event()
    mu, rho = gaussian_mu_of([event]), float_up(event.rho)
    result = {
        "mechanism": "voting",
        **settings.facts("noise_std iterations votes_per_record"),
        "mu": mu,
        "rho": rho,
        "delta": delta,
        "epsilon": epsilon_of([event], delta, "tight"),
        "epsilon_continuous_noise": gaussian_epsilon(math.sqrt(2.0 * rho), delta),
        "epsilon_zcdp": epsilon_of([event], delta, "zcdp"),
    }
    by = "exact" if mu is None else f"exact, μ <= {rounded_up(mu, '.6g')}"
    return result, say_epsilon(result, accountant=by)


@command(Votes, "epsilon delta iterations votes_per_record relation max_records_per_unit")
def calibrate_voting(settings: Votes, epsilon: TargetEpsilon, delta: Delta) -> Answer:
    """Finds the noise on each count of every round of private evolution's votes."""
    check_delta(delta)
    positive(epsilon=epsilon)
    found = settings.within(epsilon, delta)
    result = {
        "mechanism": "voting",
        "target_epsilon": epsilon,
        **found.facts("iterations votes_per_record"),
        "noise_std": found.noise_std,
        "mu": gaussian_mu_of([found.event()]),
        "delta": delta,
        "epsilon": epsilon_of([found.event()], delta, "tight"),
    }
    cost = say_epsilon(result, accountant=f"exact, {found.iterations} rounds")
    return result, f"Noise std {up_significant(found.noise_std, 6)} votes on each count: {cost}"
