"""The noise that dataset vectors need: jointly, layer by layer, and as EPSVec states it."""

import math
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    AsJson,
    Delta,
    HistogramNoiseStd,
    Records,
    RecordsPerUnit,
    Relation,
    TargetEpsilon,
    positive,
)
from dpsynth_assets.cli.account.printing import refusals, show, terms, up_significant
from dpsynth_assets.cli.account.vectors import (
    DatasetVectors,
    L2Bound,
    Layers,
    SubsetFraction,
    histogram_mu,
    layer_bounds,
)
from dpsynth_assets.cli.calibrate.gaussian import (
    ROUNDING,
    classical_check,
    classical_noise_std,
    say_classical,
)
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.renyi import check_delta
from dpsynth_assets.privacy.rounded import declared, rounded_up
from dpsynth_assets.privacy.units import NeighboringRelation


def vectors(  # noqa: PLR0913 - one argument an option
    records: Records,
    l2_bound: L2Bound,
    epsilon: TargetEpsilon,
    delta: Delta,
    layers: Layers = 1,
    subset_fraction: SubsetFraction = 1.0,
    histogram_epsilon: Annotated[
        float | None,
        typer.Option(help="Part of ε that fixed shots take, with half of δ (basic composition)."),
    ] = None,
    histogram_noise_std: HistogramNoiseStd = None,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Finds the noise std of the means of L layers released together."""
    with refusals():
        check_delta(delta)
        positive(epsilon=epsilon)
        settings = DatasetVectors(
            records=records,
            l2_bounds=layer_bounds(l2_bound, layers),
            relation=relation,
            max_records_per_unit=max_records_per_unit,
            subset_fraction=subset_fraction,
        )
        share = _share_of_vectors(epsilon, delta, histogram_epsilon)
        before = settings.before_amplification(*share)
        other = histogram_mu(histogram_noise_std, relation, max_records_per_unit)
        result = {
            "mechanism": "vectors",
            **settings.facts(),
            "target_epsilon": epsilon,
            "delta": delta,
            "histogram_epsilon": histogram_epsilon,
            "histogram_noise_std": histogram_noise_std,
            "epsilon_before_amplification": before[0],
            "delta_before_amplification": before[1],
            **_noise_stds(settings, before, _mu_left(settings, before, other)),
        }
    show(result, _say_vectors(result), as_json)


def _share_of_vectors(
    epsilon: float, delta: float, histogram_epsilon: float | None
) -> tuple[float, float]:
    """What basic composition leaves: ε less the histogram's, and half of δ."""
    if histogram_epsilon is None:
        return epsilon, delta
    positive(histogram_epsilon=histogram_epsilon)
    if histogram_epsilon >= epsilon:
        raise ValueError(
            f"Expected histogram_epsilon below epsilon, got {histogram_epsilon} of {epsilon}."
        )
    return epsilon - histogram_epsilon, delta / 2.0


def _mu_left(settings: DatasetVectors, before: tuple[float, float], histogram: float) -> float:
    """Largest μ of the vectors beside a histogram dominated by μ = `histogram`: squares add up."""
    whole = gaussian_mu(*before)
    if not histogram:
        return whole
    if settings.subset_fraction < 1:
        raise ValueError(
            "Expected subset_fraction = 1 with --histogram-noise-std, got "
            f"{settings.subset_fraction}: use --histogram-epsilon."
        )
    if histogram >= whole:
        raise ValueError(
            "Expected a histogram that costs less than the target, got one that costs all of it. "
            "Raise --histogram-noise-std or --epsilon."
        )
    return math.sqrt(whole**2 - histogram**2) * (1.0 - 1e-14)


def _noise_stds(settings: DatasetVectors, before: tuple[float, float], mu: float) -> dict[str, Any]:
    """Joint noise, and what each layer alone would need under basic composition.

    Layer by layer the noise differs where bounds do: that of the largest bound is given.
    """
    layers = len(settings.l2_bounds)
    epsilon, delta = before[0] / layers, before[1] / layers
    one = settings.sensitivity_of((max(settings.l2_bounds),))
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


def _say_vectors(result: dict[str, Any]) -> list[str]:
    layers = result["layers"]
    sentences = [
        f"Noise std {up_significant(result['noise_std'], 6)} on each coordinate of the mean: "
        f"ε = {declared(result['target_epsilon'])} at "
        f"{terms(result, f'exact Gaussian, {layers} layers together')}",
        "Layer by layer with basic composition (ε = "
        f"{rounded_up(result['epsilon_per_layer'], '.4g')} each) it "
        f"would take {up_significant(result['noise_std_layer_by_layer'], 6)}, "
        f"{result['classical_over_joint']:.2f} times the joint noise by Theorem 4.1 of EPSVec.",
        say_classical(result["noise_std_classical"], result),
    ]
    if result["subset_fraction"] < 1:
        sentences.append(
            f"The subset amplifies: on it the vectors may cost "
            f"ε = {rounded_up(result['epsilon_before_amplification'], '.4f')}."
        )
    return sentences
