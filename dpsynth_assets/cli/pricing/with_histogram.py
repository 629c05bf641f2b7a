"""Mechanisms beside which a histogram of the same records may be released: price and noise.

DP-SGD, Gaussian steps over Poisson samples (CTCL), and dataset vectors, clipped means of L layers
in one joint Gaussian release (EPSVec), whose noise is told jointly, layer by layer, and as EPSVec
states it.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    Count,
    Delta,
    Positive,
    PositiveOrNone,
    Settings,
    TargetEpsilon,
    command,
    say_epsilon,
    terms,
    up,
    up_significant,
)
from dpsynth_assets.cli.pricing.gaussian import (
    ROUNDING,
    Histogram,
    classical_check,
    classical_noise_std,
    say_classical,
)
from dpsynth_assets.privacy.accounting import epsilon_of, gaussian_mu_of
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.gaussian_dp import compose_mu, gaussian_epsilon, gaussian_mu
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import stacked_l2_sensitivity


@dataclass(frozen=True, kw_only=True)
class BesideHistogram(Settings):
    """A release over the same records as a histogram.

    Attributes:
        records: Number of private records, declared public.
        histogram_noise_std: Std of Gaussian noise on a histogram released too, in records.
    """

    records: Count
    histogram_noise_std: float | None = None

    @property
    def histogram(self) -> list[Event]:
        """The event of the histogram, where there is one."""
        if self.histogram_noise_std is None:
            return []
        histogram = Histogram(
            noise="gaussian",
            scale=self.histogram_noise_std,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )
        return [histogram.event()]


@dataclass(frozen=True, kw_only=True)
class Training(BesideHistogram):
    """DP-SGD, and a Gaussian histogram over the same records where there is one.

    Attributes:
        expected_batch_size: Expected records of one sample, B; each is drawn with B/N.
        steps: Optimizer steps, T.
        noise_multiplier: Noise std / clipping bound, σ.
    """

    mechanism = "dp-sgd"

    expected_batch_size: Positive
    steps: Annotated[int, typer.Option(min=1, max=10**7)]
    noise_multiplier: float

    @property
    def sampling_probability(self) -> float:
        """Chance q = B/N of each record in each step."""
        return self.expected_batch_size / self.records

    def event(self) -> Event:
        """Prices all steps."""
        unpriced = ("expected_batch_size", "histogram_noise_std", "records")
        own = {name: value for name, value in vars(self).items() if name not in unpriced}
        return dp_sgd_event(sampling_probability=self.sampling_probability, **own)

    def within(self, epsilon: float, delta: float, accountant: str) -> "Training":
        """Finds the smallest noise multiplier."""
        found = dp_sgd_noise_multiplier(
            sampling_probability=self.sampling_probability,
            steps=self.steps,
            target_epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            other_events=self.histogram,
            max_records_per_unit=self.max_records_per_unit,
            replaced=self.relation is NeighboringRelation.REPLACE_ONE,
        )
        return replace(self, noise_multiplier=found)

    def cost(self, delta: float, accountant: str) -> dict[str, Any]:
        """Lists the settings with ε of training, of the histogram, and of both together."""
        training, others = self.event(), self.histogram
        return self.priced(
            [*others, training],
            delta,
            accountant,
            sampling_probability=self.sampling_probability,
            epsilon_training=epsilon_of([training], delta, accountant),
            epsilon_histogram=epsilon_of(others, delta, accountant),
        )


@command()
def price_training(settings: Training, delta: Delta, accountant: Accountant = "tight") -> Answer:
    """Prices training with Poisson samples; batches of a shuffled dataset are not covered."""
    result = settings.cost(delta, accountant)
    return result, _say(result)


@command(without="noise_multiplier")
def calibrate_training(
    settings: Training, epsilon: TargetEpsilon, delta: Delta, accountant: Accountant = "tight"
) -> Answer:
    """Finds the smallest noise multiplier (noise std / clipping bound) within ε at δ."""
    found = settings.within(epsilon, delta, accountant)
    result = {"target_epsilon": epsilon, **found.cost(delta, accountant)}
    multiplier = up_significant(found.noise_multiplier, 5)
    return result, [f"Noise multiplier {multiplier} of the clipping bound.", *_say(result)]


def _say(result: dict[str, Any]) -> list[str]:
    """Says the price, and its parts where a histogram is released too."""
    sentences = [say_epsilon(result)]
    if result["histogram_noise_std"] is not None:
        sentences.append(
            f"Training alone: ε = {up(result['epsilon_training'])}; the histogram alone: "
            f"ε = {up(result['epsilon_histogram'])}."
        )
    sentences.append(
        f"Needs Poisson samples: every record drawn with probability "
        f"{rounded_up(result['sampling_probability'], '.6g')}, again at each of "
        f"{result['steps']} steps; the number of records, {result['records']}, is declared public."
    )
    return sentences


@dataclass(frozen=True, kw_only=True)
class DatasetVectors(BesideHistogram):
    """The dataset vectors, and a Gaussian histogram over the same records where there is one.

    Attributes:
        l2_bound: L2 bound C of one record's vector; give it once, or once a layer.
        layers: Layers released together, L.
        subset_fraction: Share of all private records that these are, if drawn as a random subset
            of fixed size (replace-one only).
    """

    mechanism = "vectors"

    l2_bound: list[float]
    layers: Count = 1
    subset_fraction: float = 1.0

    def __post_init__(self) -> None:
        """Refuses a subset under a relation for which amplification is not proved."""
        if len(self.l2_bound) not in (1, self.layers):
            raise ValueError(
                f"Expected --l2-bound once or {self.layers} times (once a layer), got "
                f"{len(self.l2_bound)}."
            )
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
    def l2_bounds(self) -> list[float]:
        """(L,) bounds C_l."""
        return self.l2_bound if len(self.l2_bound) == self.layers else self.l2_bound * self.layers

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of all L means stacked."""
        return self.sensitivity_of(self.l2_bounds)

    def sensitivity_of(self, l2_bounds: list[float]) -> float:
        """L2 sensitivity of the means of some of the layers."""
        return stacked_l2_sensitivity(
            l2_bounds=l2_bounds,
            records=self.records,
            relation=self.relation,
            max_records_per_unit=self.max_records_per_unit,
        )

    @property
    def histogram_mu(self) -> float:
        """μ of the Gaussian that dominates the histogram; 0 without one."""
        mu = gaussian_mu_of(self.histogram) if self.histogram else 0.0
        return math.inf if mu is None else mu

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

    def epsilon(self, mu: float, delta: float) -> float:
        """Computes ε of vectors and histogram.

        One Gaussian where nothing is subsampled; else basic composition with δ split evenly.
        """
        if not self.histogram_mu:
            return self.amplified(mu, delta)
        if self.subset_fraction == 1:
            return gaussian_epsilon(compose_mu([mu, self.histogram_mu]), delta)
        return self.amplified(mu, delta / 2.0) + gaussian_epsilon(self.histogram_mu, delta / 2.0)

    def mu_within(self, before: tuple[float, float]) -> float:
        """Finds the largest μ of the vectors beside the histogram: squares add up."""
        whole, histogram = gaussian_mu(*before), self.histogram_mu
        if not histogram:
            return whole
        if self.subset_fraction < 1:
            raise ValueError(
                "Expected subset_fraction = 1 with --histogram-noise-std, got "
                f"{self.subset_fraction}: use --histogram-epsilon."
            )
        if histogram >= whole:
            raise ValueError(
                "Expected a histogram that costs less than the target, got one that costs all of "
                "it. Raise --histogram-noise-std or --epsilon."
            )
        return math.sqrt(whole**2 - histogram**2) * (1.0 - 1e-14)

    def described(self, **numbers: Any) -> dict[str, Any]:
        """The settings as result keys, with numbers."""
        return self.facts(l2_bounds=self.l2_bounds, sensitivity=self.sensitivity, **numbers)


@command()
def price_vectors(settings: DatasetVectors, noise_std: Positive, delta: Delta) -> Answer:
    """Prices noisy means of L layers released together, exactly.

    Args:
        settings: The settings.
        noise_std: Noise std on each coordinate of the mean.
        delta: Public δ of the guarantee, between 0 and 1.
    """
    mu = settings.sensitivity / noise_std
    result = settings.described(
        noise_std=noise_std,
        mu=mu,
        mu_histogram=settings.histogram_mu,
        delta=delta,
        epsilon=settings.epsilon(mu, delta),
        epsilon_vectors=settings.amplified(mu, delta),
        epsilon_histogram=epsilon_of(settings.histogram, delta, "tight"),
    )
    return result, [
        say_epsilon(result, accountant="exact Gaussian, all layers together"),
        f"The number of records, {settings.records}, is declared public and fixed.",
    ]


@command()
def calibrate_vectors(
    settings: DatasetVectors,
    epsilon: TargetEpsilon,
    delta: Delta,
    histogram_epsilon: PositiveOrNone = None,
) -> Answer:
    """Finds the noise std of the means of L layers released together.

    Args:
        settings: The settings.
        epsilon: ε that must not be exceeded at δ.
        delta: Public δ of the guarantee, between 0 and 1.
        histogram_epsilon: Part of ε that fixed shots take, with half of δ (basic composition).
    """
    before = settings.before_amplification(*_share(epsilon, delta, histogram_epsilon))
    result = settings.described(
        target_epsilon=epsilon,
        delta=delta,
        histogram_epsilon=histogram_epsilon,
        epsilon_before_amplification=before[0],
        delta_before_amplification=before[1],
        **_vector_noise_stds(settings, before),
    )
    return result, _say_vector_noise(result)


def _share(epsilon: float, delta: float, histogram_epsilon: float | None) -> tuple[float, float]:
    """Computes what basic composition leaves: ε less the histogram's, and half of δ."""
    if histogram_epsilon is None:
        return epsilon, delta
    if histogram_epsilon >= epsilon:
        raise ValueError(
            f"Expected histogram_epsilon below epsilon, got {histogram_epsilon} of {epsilon}."
        )
    return epsilon - histogram_epsilon, delta / 2.0


def _vector_noise_stds(settings: DatasetVectors, before: tuple[float, float]) -> dict[str, Any]:
    """Computes joint noise, and what each layer alone would need under basic composition.

    Layer by layer the noise differs where bounds do: that of the largest bound is given.
    """
    mu = settings.mu_within(before)
    epsilon, delta = before[0] / settings.layers, before[1] / settings.layers
    one = settings.sensitivity_of([max(settings.l2_bounds)])
    joint = settings.sensitivity / mu * ROUNDING
    classical = classical_noise_std(one, epsilon, delta)
    return {
        "noise_std": joint,
        "noise_std_of_sum": joint * settings.records,
        "mu": mu,
        "noise_std_layer_by_layer": one / gaussian_mu(epsilon, delta),
        "noise_std_classical": classical,
        "classical_over_joint": classical / joint,
        "epsilon_per_layer": epsilon,
        "delta_per_layer": delta,
        **classical_check(epsilon, delta),
    }


def _say_vector_noise(result: dict[str, Any]) -> list[str]:
    by = f"exact Gaussian, {result['layers']} layers together"
    sentences = [
        f"Noise std {up_significant(result['noise_std'], 6)} on each coordinate of the mean: "
        f"ε = {declared(result['target_epsilon'])} at {terms(result, by)}",
        "Layer by layer with basic composition (ε = "
        f"{rounded_up(result['epsilon_per_layer'], '.4g')} each) it would take "
        f"{up_significant(result['noise_std_layer_by_layer'], 6)}, "
        f"{result['classical_over_joint']:.2f} times the joint noise by Theorem 4.1 of EPSVec.",
        say_classical(result["noise_std_classical"], result),
    ]
    if result["subset_fraction"] < 1:
        sentences.append(
            "The subset amplifies: on it the vectors may cost ε = "
            f"{rounded_up(result['epsilon_before_amplification'], '.4f')}."
        )
    return sentences
