"""Shares of what is promised to secrets: how much of it each release of a cohort may use.

Every release of a cohort tells of its secrets, DP releases too. Shares are of the squared μ of the
tightest (p, r), in which Gaussian releases add up, as shares of ρ do for ε: those that methods
declare count for all rounds together, and methods that declare none divide evenly what is left.

**Privacy** A planning aid from declared facts alone. What is promised does not rest on it: the
ledger composes the dominating pairs of all planned releases and admits none beyond any (p, r).
"""

from collections.abc import Mapping
from statistics import NormalDist

from dpsynth_assets.privacy.ledger import SecretTerms

ROUND_DOWN = 1.0 - 1e-6
"""Keeps releases that compose exactly from overshooting by rounding."""


def divided_secret_shares(
    claims: Mapping[str, float | None], secret: SecretTerms, *, rounds: int, dp_mu: float
) -> dict[str, float]:
    """Share of the secrets' bound that each method which protects secrets may use in one round.

    Args:
        claims: Declared share of each such method, in (0, 1]; None for an equal part of the rest.
        secret: What the cohort promises to secrets, as the ledger checks it.
        rounds: Times the whole plan is to be released.
        dp_mu: μ of all DP releases of all rounds together, as if they were Gaussian; 0 for none.
            A secret's neighbours are m records apart: they move by m μ (group privacy).

    Returns:
        By name; 1.0 for one method that is alone, in one round. 0 where nothing is left.

    Raises:
        ValueError: Declared shares are more than the whole; one line.
    """
    declared = sum(share for share in claims.values() if share is not None)
    if declared > 1.0 + 1e-9:
        raise ValueError(
            f"Expected secret_share of at most 1 in all, got {declared:g}. Lower one, or leave "
            "them out: what is left is then divided evenly."
        )
    moved = secret.occurrences * dp_mu
    of_dp = max((moved / _mu(*bound)) ** 2 for bound in secret.bounds)
    left = max(0.0, 1.0 - declared - of_dp)
    unclaimed = sum(share is None for share in claims.values())
    alone = len(claims) == rounds == 1 and dp_mu == 0
    margin = 1.0 if alone else ROUND_DOWN
    return {
        name: margin * (left / unclaimed if share is None else share) / rounds
        for name, share in claims.items()
    }


def _mu(prior: float, posterior: float) -> float:
    """Computes the μ at which a Gaussian release tells a secret of prior p with posterior r.

    As `privacy.secret_protection.gaussian_budget`, but for its last digits and without SciPy, which
    need not be loaded to open a dataset file.
    """
    return NormalDist().inv_cdf(posterior) - NormalDist().inv_cdf(prior)
