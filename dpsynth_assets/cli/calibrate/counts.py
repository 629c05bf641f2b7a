"""The noise that histograms and votes need."""

import math
from typing import Any

from dpsynth_assets.cli.account.counts import (
    Iterations,
    Noise,
    VotesPerRecord,
    exact_epsilon,
)
from dpsynth_assets.cli.account.options import (
    AsJson,
    Delta,
    RecordsPerUnit,
    Relation,
    TargetEpsilon,
    positive,
)
from dpsynth_assets.cli.account.printing import (
    guarantee,
    refusals,
    say_epsilon,
    show,
    up_significant,
)
from dpsynth_assets.cli.calibrate.gaussian import classical_noise_std
from dpsynth_assets.privacy.accounting import epsilon_of, gaussian_mu_of
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.histogram import (
    histogram_event,
    l1_sensitivity,
    l2_sensitivity,
    scale_for,
)
from dpsynth_assets.privacy.renyi import check_delta, zcdp_rho
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.voting import GaussianVoting, voting_noise_std


def histogram(
    epsilon: TargetEpsilon,
    delta: Delta,
    noise: Noise = "gaussian",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Finds the noise of one histogram, Laplace (pure ε) or Gaussian (its own loss on counts)."""
    with refusals():
        check_delta(delta)
        positive(epsilon=epsilon)
        least = _least_scales(noise, epsilon, delta, relation, max_records_per_unit)
        event = histogram_event(
            noise=noise,
            scale=least["scale"],
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )
        result = {
            "mechanism": "histogram",
            "noise": noise,
            "target_epsilon": epsilon,
            **guarantee(relation, max_records_per_unit),
            **least,
            "delta": delta,
            "epsilon": exact_epsilon(event, delta, "tight"),
        }
    show(result, _say_histogram(result), as_json)


def _least_scales(
    noise: Any, epsilon: float, delta: float, relation: NeighboringRelation, max_records: int
) -> dict[str, Any]:
    if noise == "laplace":
        return {
            "sensitivity": float(l1_sensitivity(relation, max_records)),
            "scale": scale_for(epsilon, delta, noise, relation, max_records),
        }
    sensitivity = l2_sensitivity(relation, max_records)
    return {
        "sensitivity": sensitivity,
        "scale": scale_for(epsilon, delta, noise, relation, max_records, "tight"),
        "scale_continuous_noise": max(1.0, sensitivity / gaussian_mu(epsilon, delta)),
        "scale_zcdp": max(1.0, sensitivity / math.sqrt(2.0 * zcdp_rho(epsilon, delta))),
        "scale_classical": classical_noise_std(sensitivity, epsilon, delta),
        "classical_formula_applies": epsilon <= 1.0,
    }


def _say_histogram(result: dict[str, Any]) -> str:
    alone = " (pure: δ = 0 when released alone)" if result["noise"] == "laplace" else ""
    price = say_epsilon(result, accountant="exact")
    return f"Scale {up_significant(result['scale'], 6)} in records: {price}{alone}"


def voting(
    epsilon: TargetEpsilon,
    delta: Delta,
    iterations: Iterations,
    votes_per_record: VotesPerRecord = 1,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Finds the noise on each count of every round of private evolution's votes."""
    with refusals():
        check_delta(delta)
        positive(epsilon=epsilon)
        setting: dict[str, Any] = {
            "iterations": iterations,
            "votes_per_record": votes_per_record,
            "relation": relation,
            "max_records_per_unit": max_records_per_unit,
        }
        noise_std = voting_noise_std(
            target_epsilon=epsilon, delta=delta, accountant="tight", **setting
        )
        event = GaussianVoting(noise_std=noise_std, **setting).event
        result = {
            "mechanism": "voting",
            "target_epsilon": epsilon,
            "iterations": iterations,
            "votes_per_record": votes_per_record,
            **guarantee(relation, max_records_per_unit),
            "noise_std": noise_std,
            "mu": gaussian_mu_of([event]),
            "delta": delta,
            "epsilon": epsilon_of([event], delta, "tight"),
        }
    price = say_epsilon(result, accountant=f"exact, {iterations} rounds")
    show(result, f"Noise std {up_significant(noise_std, 6)} votes on each count: {price}", as_json)
