"""Prices of dataset vectors: clipped means of L layers, one joint Gaussian release (EPSVec)."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    AsJson,
    Delta,
    HistogramNoiseStd,
    Records,
    RecordsPerUnit,
    Relation,
    at_least_one,
    positive,
)
from dpsynth_assets.cli.account.printing import guarantee, refusals, say_epsilon, show
from dpsynth_assets.privacy.accounting import epsilon_of, gaussian_mu_of
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.gaussian_dp import compose_mu, gaussian_epsilon
from dpsynth_assets.privacy.histogram import histogram_event
from dpsynth_assets.privacy.renyi import check_delta
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import stacked_l2_sensitivity

L2Bound = Annotated[
    list[float],
    typer.Option(help="L2 bound C of one record's vector; give it once, or once a layer."),
]
Layers = Annotated[int, typer.Option(help="Layers released together, L.")]
SubsetFraction = Annotated[
    float,
    typer.Option(
        help="Share of all private records that these are, if drawn as a random subset of "
        "fixed size (replace-one only)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class DatasetVectors:
    """Public settings of the dataset vectors: everything their sensitivity depends on.

    Attributes:
        records: Records averaged, n.
        l2_bounds: (L,) bounds C_l.
        relation: Declared neighbouring relation.
        max_records_per_unit: Records one unit may contribute.
        subset_fraction: q, share of all private records that were drawn; 1 for all.
    """

    records: int
    l2_bounds: tuple[float, ...]
    relation: NeighboringRelation
    max_records_per_unit: int
    subset_fraction: float = 1.0

    def __post_init__(self) -> None:
        """Refuses a subset under a relation for which amplification is not proved."""
        if not 0 < self.subset_fraction <= 1:
            raise ValueError(f"Expected 0 < subset_fraction <= 1, got {self.subset_fraction}.")
        replaces_one = self.relation is NeighboringRelation.REPLACE_ONE
        if self.subset_fraction < 1 and not (replaces_one and self.max_records_per_unit == 1):
            raise ValueError(
                "Expected relation replace-one and one record a unit with subset_fraction < 1, "
                f"got {self.relation} and {self.max_records_per_unit}: a subset of fixed size "
                "draws another record in the place of the one that is missing."
            )

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of all L means stacked."""
        return self.sensitivity_of(self.l2_bounds)

    def sensitivity_of(self, l2_bounds: tuple[float, ...]) -> float:
        """L2 sensitivity of the means of some of the layers."""
        return stacked_l2_sensitivity(
            l2_bounds=l2_bounds,
            records=self.records,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )

    def before_amplification(self, epsilon: float, delta: float) -> tuple[float, float]:
        """(ε, δ) that the vectors need on the subset for (`epsilon`, `delta`) on all records."""
        q = self.subset_fraction
        if q == 1:
            return epsilon, delta
        return math.log1p(math.expm1(epsilon) / q), delta / q

    def amplified(self, mu: float, delta: float) -> float:
        """Computes ε on all records of a μ-GDP release on the subset.

        Balle, Barthe, Gaboardi 2018: ε' = ln(1 + q(e^ε − 1)), δ' = qδ [epsvec S4.5].
        """
        q = self.subset_fraction
        if delta >= q:  # the drawn records may be released in the clear with probability q
            return 0.0
        epsilon = gaussian_epsilon(mu, delta / q)
        return epsilon if q == 1 else math.nextafter(math.log1p(q * math.expm1(epsilon)), math.inf)

    def facts(self) -> dict[str, Any]:
        """The settings as result keys."""
        return {
            "records": self.records,
            "l2_bounds": list(self.l2_bounds),
            "layers": len(self.l2_bounds),
            "subset_fraction": self.subset_fraction,
            **guarantee(self.relation, self.max_records_per_unit),
            "sensitivity": self.sensitivity,
        }


def layer_bounds(l2_bound: list[float], layers: int) -> tuple[float, ...]:
    """Repeats one bound over all layers, or checks that each layer has its own."""
    at_least_one(layers=layers)
    if len(l2_bound) not in (1, layers):
        raise ValueError(
            f"Expected --l2-bound once or {layers} times (once a layer), got {len(l2_bound)}."
        )
    return tuple(l2_bound) if len(l2_bound) == layers else tuple(l2_bound) * layers


def histogram_mu(
    noise_std: float | None, relation: NeighboringRelation, max_records_per_unit: int
) -> float:
    """μ of the Gaussian that dominates the histogram behind the fixed shots; 0 without one."""
    if noise_std is None:
        return 0.0
    mu = gaussian_mu_of([_histogram(noise_std, relation, max_records_per_unit)])
    return math.inf if mu is None else mu


def _histogram(noise_std: float, relation: NeighboringRelation, max_records_per_unit: int) -> Event:
    return histogram_event(
        noise="gaussian",
        scale=noise_std,
        relation=relation,
        max_records_per_unit=max_records_per_unit,
    )


def vectors(  # noqa: PLR0913 - one argument an option
    records: Records,
    l2_bound: L2Bound,
    noise_std: Annotated[float, typer.Option(help="Noise std on each coordinate of the mean.")],
    delta: Delta,
    layers: Layers = 1,
    subset_fraction: SubsetFraction = 1.0,
    histogram_noise_std: HistogramNoiseStd = None,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices noisy means of L layers released together, exactly."""
    with refusals():
        check_delta(delta)
        positive(noise_std=noise_std)
        settings = DatasetVectors(
            records=records,
            l2_bounds=layer_bounds(l2_bound, layers),
            relation=relation,
            max_records_per_unit=max_records_per_unit,
            subset_fraction=subset_fraction,
        )
        mu = settings.sensitivity / noise_std
        other = histogram_mu(histogram_noise_std, relation, max_records_per_unit)
        counts = (
            []
            if histogram_noise_std is None
            else [_histogram(histogram_noise_std, relation, max_records_per_unit)]
        )
        result = {
            "mechanism": "vectors",
            **settings.facts(),
            "noise_std": noise_std,
            "histogram_noise_std": histogram_noise_std,
            "mu": mu,
            "mu_histogram": other,
            "delta": delta,
            "epsilon": _epsilon_with_histogram(settings, mu, other, delta),
            "epsilon_vectors": settings.amplified(mu, delta),
            "epsilon_histogram": epsilon_of(counts, delta, "tight"),
        }
    show(result, _say_vectors(result), as_json)


def _epsilon_with_histogram(
    settings: DatasetVectors, mu: float, histogram: float, delta: float
) -> float:
    """One Gaussian where nothing is subsampled; else basic composition with δ split evenly."""
    if not histogram:
        return settings.amplified(mu, delta)
    if settings.subset_fraction == 1:
        return gaussian_epsilon(compose_mu([mu, histogram]), delta)
    return settings.amplified(mu, delta / 2.0) + gaussian_epsilon(histogram, delta / 2.0)


def _say_vectors(result: dict[str, Any]) -> list[str]:
    sentences = [say_epsilon(result, accountant="exact Gaussian, all layers together")]
    sentences.append(f"The number of records, {result['records']}, is declared public and fixed.")
    return sentences
