"""Noise that secrets need beside record-level Gaussian DP: SecPE's simulation, and what holds.

Records hold secrets at random; one round of counts alone is released, as in the paper's Figure 3.
Four levels of noise are compared: the printed one, what the printed sampling really needs, what
sampling that uses the data needs, and Gaussian DP of one record.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.secret_noise import (
    SamplingRule,
    joint_factor,
    sampling_probabilities,
    secret_count_distributions,
    secret_weights,
    shared_noise_std,
)
from dpsynth_assets.privacy.secret_protection import gaussian_budget, posterior_of_events
from dpsynth_assets.privacy.units import NeighboringRelation

SMALLEST_NOISE = 1e-3
"""σ below this counts as none, in records."""

_JOINT = joint_factor(NeighboringRelation.ADD_REMOVE)


@dataclass(frozen=True, kw_only=True)
class NoiseComparison:
    """Noise of one round of counts, in records, at one (p, r).

    Attributes:
        records: N.
        secrets: S.
        ratio: r / p.
        gaussian: σ of μ-GDP for one record: what the paper compares with.
        gaussian_for_secrets: σ of μ-GDP for all records of the most frequent secret: what gives it
            the same (p, r).
        printed: σ as the paper computes it: printed sampling, one Gaussian at the mixture's mean.
            NOT a guarantee.
        printed_ratio: r / p that σ `printed` attains: what the printed noise really promises.
        needed: σ that the printed sampling needs, by the exact mixture; 0 where none is needed.
        needed_if_used: σ where the heaviest records always take part.
        records_used: Expected private records in a round of the printed sampling.
        records_if_used: The same where the heaviest records always take part.
    """

    records: int
    secrets: int
    ratio: float
    gaussian: float
    gaussian_for_secrets: float
    printed: float
    printed_ratio: float
    needed: float
    needed_if_used: float
    records_used: float
    records_if_used: float

    def to_json(self) -> dict[str, float]:
        """The numbers, and the noise ratios σ_GDP / σ of each level."""
        ratios = {
            f"noise_ratio_{name}": self.gaussian / value if value else math.inf
            for name, value in (
                ("printed", self.printed),
                ("needed", self.needed),
                ("if_used", self.needed_if_used),
            )
        }
        return {**asdict(self), **ratios}


def simulated_incidence(records: int, secrets: int, share: float, seed: int) -> list[np.ndarray]:
    """Draws which records hold each secret: every record independently with probability `share`.

    Raises:
        ValueError: If a number is outside its domain.
    """
    if records < 1 or secrets < 1 or not 0 < share < 1:
        raise ValueError(
            "Expected records >= 1, secrets >= 1 and 0 < incidence < 1, got "
            f"{records}, {secrets} and {share}."
        )
    draw = np.random.default_rng(seed)
    counts = draw.binomial(records, share, size=secrets)
    return [np.sort(draw.choice(records, count, replace=False)) for count in counts.tolist()]


def compare_noise(
    records_of_secret: Sequence[np.ndarray], records: int, *, prior: float, ratio: float
) -> NoiseComparison:
    """Solves the linear program and calibrates every level of noise for one (p, r).

    Args:
        records_of_secret: For each secret, the indices of its records.
        records: N.
        prior: p.
        ratio: r / p > 1.

    Returns:
        σ of counts alone, one round. Releasing centres too multiplies every level but the printed
        one by √2.

    **Source** SecPE, appendix B.1 and Algorithm 1; errata B-004.5, .6 and .8.
    """
    posterior = ratio * prior
    mu = gaussian_budget(prior, posterior)
    weights = secret_weights(records_of_secret, [mu] * len(records_of_secret), records)
    # Records without a secret would always take part; the paper's private set has none.
    weights = weights * np.isin(np.arange(records), np.concatenate(records_of_secret))
    printed, printed_laws = _sampled(weights, records_of_secret, "algorithm-1")
    used, used_laws = _sampled(weights, records_of_secret, "inclusion")
    mean = max(float(printed[rows].sum()) for rows in records_of_secret)
    return NoiseComparison(
        records=records,
        secrets=len(records_of_secret),
        ratio=ratio,
        gaussian=1.0 / mu,
        gaussian_for_secrets=max(len(rows) for rows in records_of_secret) / mu,
        printed=mean / mu,
        printed_ratio=_attained(printed_laws, mean / mu, prior) / prior,
        needed=_needed(printed_laws, prior, posterior),
        needed_if_used=_needed(used_laws, prior, posterior),
        records_used=float(printed.sum()),
        records_if_used=float(used.sum()),
    )


def _sampled(
    weights: np.ndarray, records_of_secret: Sequence[np.ndarray], rule: SamplingRule
) -> tuple[np.ndarray, list[np.ndarray]]:
    chances = sampling_probabilities(weights, rule)
    return chances, secret_count_distributions(chances, records_of_secret)


def _needed(distributions: Sequence[np.ndarray], prior: float, posterior: float) -> float:
    """σ of counts alone: the joint release's, whose shifts are √2 longer, divided by √2."""
    noise_std = shared_noise_std(
        distributions=distributions,
        bounds=[(prior, posterior)] * len(distributions),
        steps=1,
        noise_floor=SMALLEST_NOISE * _JOINT,
    )
    return 0.0 if noise_std <= SMALLEST_NOISE * _JOINT else noise_std / _JOINT


def _attained(distributions: Sequence[np.ndarray], noise_std: float, prior: float) -> float:
    """Largest B(p) of counts alone at this noise, by the exact mixtures."""
    return max(
        posterior_of_events(
            [
                MixtureGaussianEvent(
                    noise_std=noise_std,
                    shifts=tuple(range(len(distribution))),
                    probabilities=tuple(distribution / distribution.sum()),
                )
            ],
            prior,
        )
        for distribution in distributions
    )
