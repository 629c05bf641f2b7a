"""The noise that a bare Gaussian release needs, by four rules side by side."""

import math
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    AsJson,
    RecordsPerUnit,
    Relation,
    at_least_one,
    positive,
)
from dpsynth_assets.cli.account.printing import guarantee, refusals, show, unit, up_significant
from dpsynth_assets.privacy.gaussian_dp import gaussian_delta, gaussian_mu
from dpsynth_assets.privacy.renyi import check_delta, zcdp_rho
from dpsynth_assets.privacy.rounded import declared, rounded_down
from dpsynth_assets.privacy.units import NeighboringRelation

ROUNDING = 1.0 + 1e-12
"""Added to every noise found, so that its price in floating point stays within the target."""


def classical_noise_std(sensitivity: float, epsilon: float, delta: float) -> float:
    """Evaluates Δ √(2 ln(1.25/δ)) / ε, which is proved for ε <= 1 only.

    Dwork and Roth 2014, Theorem A.1. From ε of about 8 on it is below the exact noise: too little.
    """
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


def classical_check(epsilon: float, delta: float) -> dict[str, Any]:
    """Says what the classical noise really gives at (`epsilon`, `delta`)."""
    mu = 1.0 / classical_noise_std(1.0, epsilon, delta)
    true_delta = gaussian_delta(mu, epsilon)
    return {
        "classical_formula_applies": epsilon <= 1.0,
        "classical_delta": true_delta,
        "classical_under_noises": true_delta > delta,
    }


def gaussian(
    sensitivity: Annotated[float, typer.Option(help="L2 norm by which one record moves it.")],
    epsilon: Annotated[float | None, typer.Option(help="ε to be met at δ.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, between 0 and 1.")] = None,
    rho: Annotated[float | None, typer.Option(help="zCDP parameter, instead of ε and δ.")] = None,
    count: Annotated[int, typer.Option(help="Releases over the same records.")] = 1,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Finds the noise std for ε and δ exactly, by the classical rule and by zCDP; or for a ρ."""
    with refusals():
        positive(sensitivity=sensitivity)
        at_least_one(count=count, max_records_per_unit=max_records_per_unit)
        moved = sensitivity * relation.records_changed * max_records_per_unit * math.sqrt(count)
        result = {
            "mechanism": "gaussian",
            "sensitivity": sensitivity,
            "count": count,
            **guarantee(relation, max_records_per_unit),
            "target_epsilon": epsilon,
            "delta": delta,
            **_noise_stds(moved, epsilon, delta, rho),
        }
    show(result, _say_noise(result), as_json)


def _noise_stds(
    moved: float, epsilon: float | None, delta: float | None, rho: float | None
) -> dict[str, Any]:
    if rho is not None and epsilon is None and delta is None:
        positive(rho=rho)
        return {
            "rho": rho,
            "noise_std_zcdp": math.nextafter(moved / math.sqrt(2.0 * rho), math.inf),
        }
    if rho is not None or epsilon is None or delta is None:
        raise ValueError("Expected --epsilon with --delta, or --rho alone. Give one of the two.")
    check_delta(delta)
    positive(epsilon=epsilon)
    within = zcdp_rho(epsilon, delta)
    return {
        "noise_std": moved / gaussian_mu(epsilon, delta) * ROUNDING,
        "noise_std_classical": classical_noise_std(moved, epsilon, delta),
        **classical_check(epsilon, delta),
        "noise_std_zcdp": moved / math.sqrt(2.0 * within) * ROUNDING,
        "rho": within,
        # ρ = ε²/8 of an ε-bounded-range draw equals Δ²/(2σ²) at σ = 2Δ/ε
        "noise_std_of_equal_rho_bounded_range": 2.0 * moved / epsilon,
    }


def _say_noise(result: dict[str, Any]) -> list[str]:
    whom = f"{result['relation']} of {unit(result['max_records_per_unit'])}"
    if "noise_std" not in result:
        std = up_significant(result["noise_std_zcdp"], 6)
        return [f"Noise std {std} for ρ = {rounded_down(result['rho'])} ({whom})"]
    target = f"ε = {declared(result['target_epsilon'])} at δ = {declared(result['delta'])}"
    return [
        f"Noise std {up_significant(result['noise_std'], 6)} for {target} (exact, {whom})",
        f"By zCDP: {up_significant(result['noise_std_zcdp'], 6)}. With the ρ of one draw of range "
        f"{declared(result['target_epsilon'])}: "
        f"{up_significant(result['noise_std_of_equal_rho_bounded_range'], 6)}.",
        say_classical(result["noise_std_classical"], result),
    ]


def say_classical(noise_std: float, check: dict[str, Any]) -> str:
    """Says what the classical formula asks for, and that it is no guarantee where it is none."""
    words = f"The classical formula asks for {up_significant(noise_std, 6)}"
    if check["classical_under_noises"]:
        real = up_significant(check["classical_delta"])
        return f"{words}: too little (δ would be {real}); it is proved for ε <= 1 only."
    proved = "" if check["classical_formula_applies"] else "; it is proved for ε <= 1 only"
    return f"{words}{proved}."
