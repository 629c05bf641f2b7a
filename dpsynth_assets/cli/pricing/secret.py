"""Secret protection: how likely the best attacker names a secret, and the noise that bounds it.

(p, r): an attacker who names the secret with probability at most p before the release names it
with at most r after. Neighbours differ in one secret, hence in every record that contains it.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

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
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.gaussian_dp import compose_mu
from dpsynth_assets.privacy.secret_noise import joint_factor, secret_noise_std, shift_event
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    group_privacy,
    lemma_c2,
    poisson_binomial,
    posterior_of_dp,
    posterior_of_events,
)
from dpsynth_assets.privacy.units import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class Protection:
    """Rounds of private clustering that protect one secret.

    Attributes:
        prior: p: chance of naming the secret before the release.
        rounds: Rounds, each releasing again over the same records.
        occurrences: Records that hold the secret, at most, where --mu or --epsilon is of one, or
            none is drawn.
        adjacency: removal: neighbours lack every record with the secret. substitution: those
            records have other content.
        release: joint: cluster centres and counts. counts: counts alone.
        sampling_probabilities: Of each record that holds the secret, in one round;
            comma-separated.
    """

    prior: float
    rounds: Annotated[int, typer.Option(min=1, max=10**5)] = 1
    occurrences: Count = 1
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

    def event(self, noise_std: float) -> MixtureGaussianEvent:
        """Prices rounds that draw each record with the secret at random.

        Only the ratio of shift to noise counts, so counts alone are the joint release of
        `shift_event`, whose shifts are longer, with as much more noise.
        """
        longer = joint_factor(self.relation) / self.shift_of_one_record
        joint = shift_event(
            count_probabilities=poisson_binomial(self.chances),
            noise_std=noise_std * longer,
            steps=self.rounds,
            relation=self.relation,
        )
        shifts = tuple(shift / longer for shift in joint.shifts)
        return replace(joint, noise_std=noise_std, shifts=shifts)

    def within(self, posterior: float, noise_floor: float) -> tuple[float, float]:
        """Finds the noise std of each round for a posterior, and the posterior that it reaches."""
        moved = self.shift_of_one_record * self.most_records * math.sqrt(self.rounds)
        if not self.chances:
            noise_std = moved / gaussian_budget(self.prior, posterior) * ROUNDING
            return noise_std, gaussian_posterior(moved / noise_std, self.prior)
        shorter = self.shift_of_one_record / joint_factor(self.relation)
        noise_std = shorter * secret_noise_std(
            count_probabilities=poisson_binomial(self.chances),
            prior=self.prior,
            posterior=posterior,
            steps=self.rounds,
            relation=self.relation,
            noise_floor=noise_floor / shorter,
        )
        return noise_std, posterior_of_events([self.event(noise_std)], self.prior)


@command()
def price(
    settings: Protection,
    posterior: list[float] | None = None,
    mu: PositiveOrNone = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    noise_std: PositiveOrNone = None,
    shifts: list[str] | None = None,
    probabilities: list[str] | None = None,
) -> Answer:
    """Prices secret protection, from the one of r, μ, (ε, δ) and noise std that is given.

    Args:
        settings: The settings.
        posterior: r: chance after the release; prints μ. Twice: two releases.
        mu: μ of one Gaussian round; prints r.
        epsilon: ε of a DP release; prints r.
        delta: δ of that DP release, in [0, 1).
        noise_std: Noise std of one round.
        shifts: Distances the release may move, ascending.
        probabilities: Probability of each distance.
    """
    exactly_one(posterior=posterior or None, mu=mu, epsilon=epsilon, noise_std=noise_std)
    if posterior:
        result, sentences = _of_posteriors(settings.prior, posterior)
    elif mu is not None:
        result, sentences = _of_mu(settings, mu)
    elif epsilon is not None:
        result, sentences = _of_dp(settings, epsilon, delta)
    else:
        result, sentences = _of_noise(settings, noise_std or 0.0, shifts, probabilities)
    facts = {"prior": settings.prior, "rounds": settings.rounds}
    return {"mechanism": "secret", "unit": "one secret", **facts, **result}, sentences


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


def _of_posteriors(prior: float, posteriors: list[float]) -> Answer:
    if len(posteriors) > 1:
        return _of_several(prior, posteriors)
    mu = gaussian_budget(prior, posteriors[0])
    result: dict[str, Any] = {
        "posterior": posteriors[0],
        "mu": mu,
        "posterior_of_mu": gaussian_posterior(mu, prior),
        "posterior_if_calibrated_alone_removal": gaussian_posterior(math.sqrt(2.0) * mu, prior),
        "posterior_if_calibrated_alone_substitution": gaussian_posterior(2.0 * mu, prior),
    }
    return result, [
        f"μ = {down_significant(mu, 6)} in all keeps a secret named with {declared(prior)} before "
        f"at {declared(posteriors[0])} after.",
        "Centres and counts calibrated one by one and released together would let it reach "
        f"{up_significant(result['posterior_if_calibrated_alone_removal'])} (removal) or "
        f"{up_significant(result['posterior_if_calibrated_alone_substitution'])} (substitution).",
    ]


def _of_several(prior: float, posteriors: list[float]) -> Answer:
    """Composes Gaussian releases; the points (p, r) alone compose to nothing."""
    mu = compose_mu([gaussian_budget(prior, posterior) for posterior in posteriors])
    reached = gaussian_posterior(mu, prior)
    result: dict[str, Any] = {
        "posteriors": posteriors,
        "mu": mu,
        "posterior": reached,
        "posterior_sum": math.fsum(posteriors),
        "posterior_from_the_points_alone": 1.0,
    }
    return result, [
        f"Gaussian releases: μ = {up_significant(mu, 6)}, posterior {up_significant(reached)}.",
        f"The sum {rounded_up(result['posterior_sum'])} that Theorem 3 of SecPE states is not a "
        "bound: from the pairs (p, r) alone nothing below 1 follows (tens digit, then units "
        "digit).",
    ]


def _of_mu(settings: Protection, mu: float) -> Answer:
    occurrences = settings.occurrences
    # Group privacy: μ grows m-fold.
    total = compose_mu([occurrences * mu]) * math.sqrt(settings.rounds)
    posterior = gaussian_posterior(total, settings.prior)
    terms = f"μ = {rounded_up(total, '.6g')}, {_held_by(occurrences)}"
    return {"occurrences": occurrences, "mu": total, "posterior": posterior}, [
        _say_posterior(settings.prior, posterior, terms)
    ]


def _of_dp(settings: Protection, epsilon: float, delta: float) -> Answer:
    prior, occurrences = settings.prior, settings.occurrences
    epsilon, delta = group_privacy(epsilon, delta, occurrences)
    reference = posterior_of_dp(epsilon, delta, prior, adjacency="reference")
    pairwise = posterior_of_dp(epsilon, delta, prior, adjacency="pairwise")
    invalid, whom = lemma_c2(epsilon, delta, prior), _held_by(occurrences)
    result = {
        "occurrences": occurrences,
        "epsilon": epsilon,
        "delta": delta,
        "posterior_reference": reference,
        "posterior_pairwise": pairwise,
        "posterior_lemma_c2_invalid": invalid,
    }
    return result, [
        _say_posterior(prior, reference, f"present against absent, {whom}"),
        _say_posterior(prior, pairwise, f"one candidate against another, {whom}"),
        f"Lemma C.2 of SecPE states {up_significant(invalid)}, which does not hold where the "
        "secret is present or absent.",
    ]


def _of_noise(
    settings: Protection,
    noise_std: float,
    shifts: list[str] | None,
    probabilities: list[str] | None,
) -> Answer:
    """Prices rounds that move by given distances, or as far as records drawn at random do."""
    distances, chances = numbers(shifts, "shifts"), settings.chances
    exactly_one(shifts=distances or None, sampling_probabilities=chances or None)
    if chances:
        event = settings.event(noise_std)
    else:
        moves = tuple(numbers(probabilities, "probabilities") or [1.0])
        event = MixtureGaussianEvent(
            noise_std=noise_std, shifts=tuple(distances), probabilities=moves, steps=settings.rounds
        )
    drawn = {"adjacency": settings.adjacency, "release": settings.release} if chances else {}
    posterior = posterior_of_events([event], settings.prior)
    result = {
        "noise_std": event.noise_std,
        "shifts": list(event.shifts),
        "probabilities": list(event.probabilities),
        "posterior": posterior,
    }
    terms = f"exact mixture of Gaussians, {event.steps} round{'s' if event.steps != 1 else ''}"
    return drawn | result, [_say_posterior(settings.prior, posterior, terms)]


def _say_posterior(prior: float, posterior: float, terms: str) -> str:
    return (
        f"A secret named with {declared(prior)} before is named with at most "
        f"{up_significant(posterior)} after ({terms})."
    )


def _held_by(occurrences: int) -> str:
    """Says what the bound protects."""
    return f"one secret in at most {occurrences} record{'s' if occurrences > 1 else ''}"
