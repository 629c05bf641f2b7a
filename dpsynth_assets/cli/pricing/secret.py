"""Secret protection: how likely the best attacker names a secret.

(p, r): an attacker who names the secret with probability at most p before the release names it
with at most r after. Neighbours differ in one secret, hence in every record that contains it.
"""

from dataclasses import dataclass

from dpsynth_assets.cli.pricing.commands import (
    Answer,
    Count,
    PositiveOrNone,
    command,
    down_significant,
    exactly_one,
    up_significant,
)
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.gaussian_dp import compose_mu
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    group_privacy,
    posterior_of_dp,
)


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A secret that somebody may guess, and the records that hold it.

    Attributes:
        prior: p: chance of naming the secret before the release.
        occurrences: Records that hold the secret, at most.
    """

    prior: float
    occurrences: Count = 1


@command()
def price(
    settings: Secret,
    posterior: float | None = None,
    mu: PositiveOrNone = None,
    epsilon: float | None = None,
    delta: float = 0.0,
) -> Answer:
    """Prices secret protection, from the one of r, μ and (ε, δ) that is given.

    Args:
        settings: The settings.
        posterior: r: chance after the release; prints μ.
        mu: μ of Gaussian releases together, for one record; prints r.
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


def _of_posterior(prior: float, posterior: float) -> Answer:
    mu = gaussian_budget(prior, posterior)
    return {"posterior": posterior, "mu": mu}, [
        f"μ = {down_significant(mu, 6)} in all keeps a secret named with {declared(prior)} before "
        f"at {declared(posterior)} after."
    ]


def _of_mu(settings: Secret, mu: float) -> Answer:
    occurrences = settings.occurrences
    # Group privacy: μ grows m-fold.
    total = compose_mu([occurrences * mu])
    posterior = gaussian_posterior(total, settings.prior)
    terms = f"μ = {rounded_up(total, '.6g')}, {_held_by(occurrences)}"
    return {"mu": total, "posterior": posterior}, [_say_posterior(settings.prior, posterior, terms)]


def _of_dp(settings: Secret, epsilon: float, delta: float) -> Answer:
    prior, occurrences = settings.prior, settings.occurrences
    epsilon, delta = group_privacy(epsilon, delta, occurrences)
    reference = posterior_of_dp(epsilon, delta, prior, adjacency="reference")
    pairwise = posterior_of_dp(epsilon, delta, prior, adjacency="pairwise")
    whom = _held_by(occurrences)
    result = {
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
