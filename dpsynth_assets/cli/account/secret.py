"""Prices of secret protection: how likely the best attacker names a secret, before and after.

(p, r): whoever names the secret with probability at most p before the release names it with at
most r after. Neighbours differ in one secret, hence in every record that contains it.
"""

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from dpsynth_assets.cli.account.options import AsJson, at_least_one, exactly_one, positive
from dpsynth_assets.cli.account.printing import down_significant, refusals, show, up_significant
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.gaussian_dp import compose_mu
from dpsynth_assets.privacy.rounded import declared, rounded_up
from dpsynth_assets.privacy.secret_noise import joint_factor, shift_event
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    poisson_binomial,
    posterior_of_dp,
    posterior_of_events,
)
from dpsynth_assets.privacy.units import NeighboringRelation

Prior = Annotated[float, typer.Option(help="p: chance of naming the secret before the release.")]
Rounds = Annotated[
    int, typer.Option(min=1, max=10**5, help="Rounds, each releasing again over the same records.")
]
Adjacency = Annotated[
    Literal["removal", "substitution"],
    typer.Option(
        help="removal: neighbours lack every record with the secret. substitution: those records "
        "have other content."
    ),
]
Released = Annotated[
    Literal["joint", "counts"],
    typer.Option(help="joint: cluster centres and counts. counts: counts alone."),
]
SamplingProbabilities = Annotated[
    list[str] | None,
    typer.Option(help="Of each record that holds the secret, in one round; comma-separated."),
]


def shift_of_one_record(adjacency: str, release: str) -> float:
    """Computes how far one record with the secret moves a round's stacked release.

    Centres are divided by their own bound, so both parts count equally: a record that goes moves
    one count by 1 and one centre by 1; one that is replaced leaves a bin and enters another
    (errata B-004.1 and B-004.2).
    """
    parts = 2 if release == "joint" else 1
    ends = 2 if adjacency == "substitution" else 1
    return math.sqrt(parts * ends)


def numbers(given: list[str] | None, name: str) -> list[float]:
    """Reads numbers given one an option, or several separated by commas."""
    try:
        return [float(part) for text in given or [] for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"Expected numbers separated by commas for --{name}, got {','.join(given or [])!r}."
        ) from None


def sampled_secret(
    noise_std: float, sampling_probabilities: list[float], adjacency: str, release: str, rounds: int
) -> MixtureGaussianEvent:
    """Prices rounds that draw each record with the secret at random.

    Only the ratio of shift to noise counts, so counts alone are the joint release of
    `shift_event`, whose shifts are longer, with as much more noise.
    """
    relation = relation_of(adjacency)
    longer = joint_factor(relation) / shift_of_one_record(adjacency, release)
    joint = shift_event(
        count_probabilities=poisson_binomial(sampling_probabilities),
        noise_std=noise_std * longer,
        steps=rounds,
        relation=relation,
    )
    shifts = tuple(shift / longer for shift in joint.shifts)
    return replace(joint, noise_std=noise_std, shifts=shifts)


def mixture(
    noise_std: float, shifts: list[float], probabilities: list[float], rounds: int
) -> MixtureGaussianEvent:
    """Prices rounds that move by given distances; a single one is certain."""
    return MixtureGaussianEvent(
        noise_std=noise_std,
        shifts=tuple(shifts),
        probabilities=tuple(probabilities or [1.0]),
        steps=rounds,
    )


def relation_of(adjacency: str) -> NeighboringRelation:
    """The records' relation that a secret's adjacency means."""
    removed = adjacency == "removal"
    return NeighboringRelation.ADD_REMOVE if removed else NeighboringRelation.REPLACE_ONE


def secret(  # noqa: PLR0913 - one argument an option
    prior: Prior,
    posterior: Annotated[
        list[float] | None,
        typer.Option(help="r: chance after the release; prints μ. Twice: two releases."),
    ] = None,
    mu: Annotated[float | None, typer.Option(help="μ of one Gaussian round; prints r.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of a DP release; prints r.")] = None,
    delta: Annotated[float, typer.Option(help="δ of that DP release, in [0, 1).")] = 0.0,
    noise_std: Annotated[float | None, typer.Option(help="Noise std of one round.")] = None,
    shifts: Annotated[
        list[str] | None, typer.Option(help="Distances the release may move, ascending.")
    ] = None,
    probabilities: Annotated[
        list[str] | None, typer.Option(help="Probability of each distance.")
    ] = None,
    sampling_probabilities: SamplingProbabilities = None,
    rounds: Rounds = 1,
    occurrences: Annotated[
        int, typer.Option(help="Records that hold the secret, where --mu or --epsilon is of one.")
    ] = 1,
    adjacency: Adjacency = "substitution",
    release: Released = "joint",
    as_json: AsJson = False,
) -> None:
    """Prices secret protection, from the one of r, μ, (ε, δ) and noise std that is given."""
    with refusals():
        at_least_one(rounds=rounds, occurrences=occurrences)
        exactly_one(posterior=posterior or None, mu=mu, epsilon=epsilon, noise_std=noise_std)
        facts = {"mechanism": "secret", "unit": "one secret", "prior": prior, "rounds": rounds}
        if posterior:
            result, sentences = _of_posteriors(prior, posterior)
        elif mu is not None:
            result, sentences = _of_mu(prior, mu, rounds, occurrences)
        elif epsilon is not None:
            result, sentences = _of_dp(prior, epsilon, delta, occurrences)
        else:
            std = noise_std or 0.0
            positive(noise_std=std)
            distances = numbers(shifts, "shifts")
            chances = numbers(sampling_probabilities, "sampling-probabilities")
            exactly_one(shifts=distances or None, sampling_probabilities=chances or None)
            event = (
                sampled_secret(std, chances, adjacency, release, rounds)
                if chances
                else mixture(std, distances, numbers(probabilities, "probabilities"), rounds)
            )
            result, sentences = _of_mixture(prior, event)
            if chances:
                facts |= {"adjacency": adjacency, "release": release}
    show({**facts, **result}, sentences, as_json)


def _of_posteriors(prior: float, posteriors: list[float]) -> tuple[dict[str, Any], list[str]]:
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
        f"μ = {down_significant(mu, 6)} in all keeps a secret named with {declared(prior)} "
        "before at "
        f"{declared(posteriors[0])} after.",
        "Centres and counts calibrated one by one and released together would let it reach "
        f"{up_significant(result['posterior_if_calibrated_alone_removal'])} (removal) or "
        f"{up_significant(result['posterior_if_calibrated_alone_substitution'])} (substitution).",
    ]


def _of_several(prior: float, posteriors: list[float]) -> tuple[dict[str, Any], list[str]]:
    """Composes Gaussian releases; the points (p, r) alone compose to nothing."""
    mu = compose_mu([gaussian_budget(prior, posterior) for posterior in posteriors])
    result: dict[str, Any] = {
        "posteriors": posteriors,
        "mu": mu,
        "posterior": gaussian_posterior(mu, prior),
        "posterior_sum": math.fsum(posteriors),
        "posterior_from_the_points_alone": 1.0,
    }
    return result, [
        f"Gaussian releases: μ = {up_significant(mu, 6)}, posterior "
        f"{up_significant(result['posterior'])}.",
        f"The sum {rounded_up(result['posterior_sum'])} that Theorem 3 of SecPE states is not a "
        "bound: from "
        "the pairs (p, r) alone nothing below 1 follows (tens digit, then units digit).",
    ]


def _of_mu(
    prior: float, mu: float, rounds: int, occurrences: int
) -> tuple[dict[str, Any], list[str]]:
    positive(mu=mu)
    total = compose_mu([occurrences * mu]) * math.sqrt(rounds)  # group privacy: μ grows m-fold
    result = {
        "occurrences": occurrences,
        "mu": total,
        "posterior": gaussian_posterior(total, prior),
    }
    return result, [
        _say_posterior(
            prior, result["posterior"], f"μ = {rounded_up(total, '.6g')}, {held_by(occurrences)}"
        )
    ]


def _of_dp(
    prior: float, epsilon: float, delta: float, occurrences: int
) -> tuple[dict[str, Any], list[str]]:
    epsilon, delta = group_privacy(epsilon, delta, occurrences)
    result: dict[str, Any] = {
        "occurrences": occurrences,
        "epsilon": epsilon,
        "delta": delta,
        "posterior_reference": posterior_of_dp(epsilon, delta, prior, adjacency="reference"),
        "posterior_pairwise": posterior_of_dp(epsilon, delta, prior, adjacency="pairwise"),
        "posterior_lemma_c2_invalid": lemma_c2(epsilon, delta, prior),
    }
    whom = held_by(occurrences)
    return result, [
        _say_posterior(prior, result["posterior_reference"], f"present against absent, {whom}"),
        _say_posterior(
            prior, result["posterior_pairwise"], f"one candidate against another, {whom}"
        ),
        f"Lemma C.2 of SecPE states {up_significant(result['posterior_lemma_c2_invalid'])}, which "
        "does not hold where the secret is present or absent.",
    ]


def group_privacy(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """(ε, δ) between datasets that differ in several records: (mε, δ(e^mε − 1)/(e^ε − 1))."""
    if not (epsilon >= 0 and math.isfinite(epsilon) and 0 <= delta < 1):
        raise ValueError(f"Expected epsilon >= 0 and 0 <= delta < 1, got {epsilon} and {delta}.")
    if records == 1:
        return epsilon, delta
    if delta == 0 or epsilon == 0:
        return records * epsilon, min(1.0, records * delta)
    if records * epsilon > 700.0:  # e^mε overflows: δ reaches 1 long before
        return records * epsilon, 1.0
    grown = delta * math.expm1(records * epsilon) / math.expm1(epsilon) * (1.0 + 1e-14)
    return records * epsilon, min(1.0, grown)


def lemma_c2(epsilon: float, delta: float, prior: float) -> float:
    """Evaluates Lemma C.2 of SecPE at its best c >= 1, for comparison only: it is not a bound.

    r(c) = A(c) / (A(c) + 1 − p) + cδ with A(c) = p(e^ε + 1/c) is convex in c.
    """
    if epsilon > 700.0:  # e^ε overflows
        return 1.0
    kept = 1.0 - prior + prior * math.exp(epsilon)
    if delta == 0.0:  # c grows without bound
        return prior * math.exp(epsilon) / kept
    c = max(1.0, (math.sqrt(prior * (1.0 - prior) / delta) - prior) / kept)
    odds = prior * (math.exp(epsilon) + 1.0 / c)
    return min(1.0, odds / (odds + 1.0 - prior) + c * delta)


def _of_mixture(prior: float, event: MixtureGaussianEvent) -> tuple[dict[str, Any], list[str]]:
    result: dict[str, Any] = {
        "noise_std": event.noise_std,
        "shifts": list(event.shifts),
        "probabilities": list(event.probabilities),
        "posterior": posterior_of_events([event], prior),
    }
    terms = f"exact mixture of Gaussians, {event.steps} round{'s' if event.steps != 1 else ''}"
    return result, [_say_posterior(prior, result["posterior"], terms)]


def _say_posterior(prior: float, posterior: float, terms: str) -> str:
    return (
        f"A secret named with {declared(prior)} before is named with at most "
        f"{up_significant(posterior)} "
        f"after ({terms})."
    )


def held_by(occurrences: int) -> str:
    """Says what the bound protects."""
    return f"one secret in at most {occurrences} record{'s' if occurrences > 1 else ''}"
