"""Noise that secrets need beside record-level Gaussian DP: SecPE's simulation, and what holds.

    python benchmarks/secret_noise.py [--ratios 2 10 50] [--secrets 400] [--plot FILE.png] [--json]

Records hold secrets at random; one round of counts alone is released, as in the paper's Figure 3.
Four levels of noise are compared: the printed one, what the printed sampling really needs, what
sampling that uses the data needs, and Gaussian DP of one record.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_noise import (
    joint_factor,
    sampling_probabilities,
    secret_count_distributions,
    secret_noise_std,
    secret_weights,
)
from dpsynth_assets.privacy.secret_protection import gaussian_budget, posterior_of_events

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
    used = sampling_probabilities(weights)
    printed = np.minimum(used / weights.sum(), 1.0)  # As line 4 is printed.
    printed_laws, used_laws = (
        secret_count_distributions(chances, records_of_secret) for chances in (printed, used)
    )
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


def _needed(distributions: Sequence[np.ndarray], prior: float, posterior: float) -> float:
    """σ of counts alone: the joint release's, whose shifts are √2 longer, divided by √2."""
    noise_std = SMALLEST_NOISE * _JOINT
    for law in distributions:
        noise_std = secret_noise_std(
            count_probabilities=law, bounds=[(prior, posterior)], steps=1, noise_floor=noise_std
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


RATIOS = (2, 5, 10, 20, 50, 100, 200, 400)

LEVELS = {
    "printed": "as printed: NO guarantee",
    "needed": "printed sampling, exact mixture",
    "needed_if_used": "sampling that uses the data, exact",
}
"""Levels of noise beside σ of Gaussian DP, by the fields of `NoiseComparison`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints σ of every level, and how many times smaller it is than that of Gaussian DP."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prior", type=float, default=1e-4, help="p of every secret")
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS)
    parser.add_argument("--records", type=int, default=8_000)
    parser.add_argument("--secrets", type=int, nargs="+", default=[400])
    parser.add_argument(
        "--incidence", type=float, default=0.01, help="share of records of a secret"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulated incidence")
    parser.add_argument("--plot", type=Path, help="PNG file to write")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [
        compare_noise(held, options.records, prior=options.prior, ratio=ratio)
        for count in options.secrets
        for held in [simulated_incidence(options.records, count, options.incidence, options.seed)]
        for ratio in options.ratios
    ]
    if options.plot is not None:
        plot(rows, options.plot)
    for row in rows:
        print(json.dumps(row.to_json()) if options.json else in_words(row))


def in_words(row: NoiseComparison) -> str:
    """One line of the table."""
    levels = [f"{name}: {getattr(row, field):.3g}" for field, name in LEVELS.items()]
    start = f"{row.secrets} secrets, r/p {row.ratio:g}: σ of Gaussian DP {row.gaussian:.3g}; "
    return (
        start + "; ".join(levels) + f"; r/p that the printed noise attains: {row.printed_ratio:.3g}"
    )


def plot(rows: Sequence[NoiseComparison], place: Path) -> None:
    """σ of Gaussian DP over σ of each level."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    against = "ratio" if len({row.ratio for row in rows}) > 1 else "secrets"
    for field, name in LEVELS.items():
        ratios = [
            row.gaussian / getattr(row, field) if getattr(row, field) else None for row in rows
        ]
        axes.plot([getattr(row, against) for row in rows], ratios, marker="o", label=name)
    axes.axhline(1.0, color="#444444", linewidth=0.8)
    axes.set(yscale="log", xlabel={"ratio": "r / p"}.get(against, against), ylabel="σ of GDP / σ")
    axes.legend(fontsize=8)
    place.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(place)


if __name__ == "__main__":
    main()
