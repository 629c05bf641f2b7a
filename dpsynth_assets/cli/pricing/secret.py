"""Secret protection: how likely the best attacker names a secret, and the noise that bounds it.

(p, r): an attacker who names the secret with probability at most p before the release names it
with at most r after. Neighbours differ in one secret, hence in every record that contains it.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from dpsynth_assets.cli.pricing.commands import (
    Answer,
    Count,
    PositiveOrNone,
    command,
    down_significant,
    exactly_one,
    numbers,
    up_significant,
)
from dpsynth_assets.cli.pricing.gaussian import ROUNDING
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.gaussian_dp import compose_mu
from dpsynth_assets.privacy.secret_noise import joint_factor, secret_noise_std, shift_event
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    group_privacy,
    poisson_binomial,
    posterior_of_dp,
    posterior_of_events,
)
from dpsynth_assets.privacy.units import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A secret that somebody may guess, and the records that hold it.

    Attributes:
        prior: p: chance of naming the secret before the release.
        rounds: Rounds, each releasing again over the same records.
        occurrences: Records that hold the secret, at most.
    """

    prior: float
    rounds: Annotated[int, typer.Option(min=1, max=10**5)] = 1
    occurrences: Count = 1


@dataclass(frozen=True, kw_only=True)
class Protection(Guess):
    """Rounds of private clustering that protect one secret.

    Attributes:
        adjacency: removal: neighbours lack every record with the secret. substitution: those
            records have other content.
        release: joint: cluster centres and counts. counts: counts alone.
        sampling_probabilities: Of each record that holds the secret, in one round;
            comma-separated.
    """

    adjacency: Literal["removal", "substitution"] = "substitution"
    release: Literal["joint", "counts"] = "joint"
    sampling_probabilities: list[str] | None = None

    @property
    def chances(self) -> list[float]:
        """Sampling probability of each record with the secret; empty where none is drawn."""
        return numbers(self.sampling_probabilities, "sampling-probabilities")

    @property
    def most_records(self) -> int:
        """Records that hold the secret, at most."""
        return len(self.chances) or self.occurrences

    @property
    def relation(self) -> NeighboringRelation:
        """The records' relation that the secret's adjacency means."""
        removed = self.adjacency == "removal"
        return NeighboringRelation.ADD_REMOVE if removed else NeighboringRelation.REPLACE_ONE

    @property
    def shift_of_one_record(self) -> float:
        """How far one record with the secret moves a round's stacked release.

        Centres are divided by their own bound, so both parts count equally: a record that goes
        moves one count by 1 and one centre by 1; one that is replaced leaves a bin and enters
        another (errata B-004.1 and B-004.2).
        """
        parts = 2 if self.release == "joint" else 1
        ends = 2 if self.adjacency == "substitution" else 1
        return math.sqrt(parts * ends)

    def within(self, posterior: float, noise_floor: float) -> tuple[float, float]:
        """Finds the noise std of each round for a posterior, and the posterior that it reaches."""
        moved = self.shift_of_one_record * self.most_records * math.sqrt(self.rounds)
        if not self.chances:
            noise_std = moved / gaussian_budget(self.prior, posterior) * ROUNDING
            return noise_std, gaussian_posterior(moved / noise_std, self.prior)
        shorter = self.shift_of_one_record / joint_factor(self.relation)
        rounds = {
            "count_probabilities": poisson_binomial(self.chances),
            "steps": self.rounds,
            "relation": self.relation,
        }
        # Noise of the joint release, whose shifts are longer: only the ratio of the two counts.
        joint = secret_noise_std(
            **rounds, prior=self.prior, posterior=posterior, noise_floor=noise_floor / shorter
        )
        event = shift_event(**rounds, noise_std=joint)
        return shorter * joint, posterior_of_events([event], self.prior)


@command()
def price(
    settings: Guess,
    posterior: float | None = None,
    mu: PositiveOrNone = None,
    epsilon: float | None = None,
    delta: float = 0.0,
) -> Answer:
    """Prices secret protection, from the one of r, μ and (ε, δ) that is given.

    Args:
        settings: The settings.
        posterior: r: chance after the release; prints μ.
        mu: μ of one Gaussian round; prints r.
        epsilon: ε of a DP release; prints r.
        delta: δ of that DP release, in [0, 1).
    """
    exactly_one(posterior=posterior, mu=mu, epsilon=epsilon)
    if posterior is not None:
        result, sentences = _of_posterior(settings.prior, posterior)
    elif mu is not None:
        result, sentences = _of_mu(settings, mu)
    else:
        result, sentences = _of_dp(settings, epsilon or 0.0, delta)
    return {"mechanism": "secret", "unit": "one secret", **vars(settings), **result}, sentences


@command()
def calibrate(settings: Protection, posterior: float, noise_floor: float = 1.0) -> Answer:
    """Finds the noise std of each round that keeps a secret at (prior, posterior).

    Args:
        settings: The settings.
        posterior: r: chance of naming it that is accepted.
        noise_floor: Least noise std where records are drawn: rare ones need none.
    """
    chances = settings.chances
    noise_std, reached = settings.within(posterior, noise_floor)
    result = {
        "mechanism": "secret",
        "unit": "one secret",
        **vars(settings),
        "target_posterior": posterior,
        "occurrences": settings.most_records,
        "sampling_probabilities": chances or None,
        "noise_floor": noise_floor if chances else None,
        "mu": gaussian_budget(settings.prior, posterior),
        "shift_of_one_record": settings.shift_of_one_record,
        "noise_std": noise_std,
        "posterior": reached,
    }
    return result, [
        f"Noise std {up_significant(noise_std, 6)} in each of {settings.rounds} rounds "
        f"keeps a secret named with {declared(settings.prior)} before at most "
        f"{up_significant(reached)} after ({settings.release} release, "
        f"{settings.adjacency} of {_held_by(settings.most_records)}"
        f"{', each drawn at random' if chances else ''})."
    ]


def _of_posterior(prior: float, posterior: float) -> Answer:
    mu = gaussian_budget(prior, posterior)
    return {"posterior": posterior, "mu": mu}, [
        f"μ = {down_significant(mu, 6)} in all keeps a secret named with {declared(prior)} before "
        f"at {declared(posterior)} after."
    ]


def _of_mu(settings: Guess, mu: float) -> Answer:
    occurrences = settings.occurrences
    # Group privacy: μ grows m-fold.
    total = compose_mu([occurrences * mu]) * math.sqrt(settings.rounds)
    posterior = gaussian_posterior(total, settings.prior)
    terms = f"μ = {rounded_up(total, '.6g')}, {_held_by(occurrences)}"
    return {"occurrences": occurrences, "mu": total, "posterior": posterior}, [
        _say_posterior(settings.prior, posterior, terms)
    ]


def _of_dp(settings: Guess, epsilon: float, delta: float) -> Answer:
    prior, occurrences = settings.prior, settings.occurrences
    epsilon, delta = group_privacy(epsilon, delta, occurrences)
    reference = posterior_of_dp(epsilon, delta, prior, adjacency="reference")
    pairwise = posterior_of_dp(epsilon, delta, prior, adjacency="pairwise")
    whom = _held_by(occurrences)
    result = {
        "occurrences": occurrences,
        "epsilon": epsilon,
        "delta": delta,
        "posterior_reference": reference,
        "posterior_pairwise": pairwise,
    }
    return result, [
        _say_posterior(prior, reference, f"present against absent, {whom}"),
        _say_posterior(prior, pairwise, f"one candidate against another, {whom}"),
    ]


def _say_posterior(prior: float, posterior: float, terms: str) -> str:
    return (
        f"A secret named with {declared(prior)} before is named with at most "
        f"{up_significant(posterior)} after ({terms})."
    )


def _held_by(occurrences: int) -> str:
    """Says what the bound protects."""
    return f"one secret in at most {occurrences} record{'s' if occurrences > 1 else ''}"
