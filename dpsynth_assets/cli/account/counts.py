"""Prices of noisy counts: one histogram, and the votes of private evolution."""

import math
from typing import Annotated, Any, Literal

import typer

from dpsynth_assets.cli.account.options import (
    Accountant,
    AsJson,
    Delta,
    RecordsPerUnit,
    Relation,
)
from dpsynth_assets.cli.account.printing import (
    guarantee,
    refusals,
    say_epsilon,
    show,
    up,
)
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, gaussian_mu_of
from dpsynth_assets.privacy.events import DiscreteLaplaceEvent, Event
from dpsynth_assets.privacy.gaussian_dp import gaussian_epsilon
from dpsynth_assets.privacy.histogram import histogram_event
from dpsynth_assets.privacy.renyi import check_delta, float_up
from dpsynth_assets.privacy.rounded import rounded_up
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.voting import GaussianVoting

LARGEST_TABULATED = 100.0
"""Pure ε above which no privacy-loss distribution is tabulated: δ buys nothing there."""

Noise = Annotated[Literal["laplace", "gaussian"], typer.Option(help="Noise.")]
Iterations = Annotated[
    int, typer.Option(min=1, max=10**6, help="Rounds of votes, all over the same records.")
]
VotesPerRecord = Annotated[int, typer.Option(help="Votes one record casts in one round.")]


def histogram(
    scale: Annotated[
        float, typer.Option("--scale", "--noise-std", help="Noise scale in counts (Gaussian: std).")
    ],
    delta: Delta,
    noise: Noise = "laplace",
    accountant: Accountant = "tight",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices one noisy histogram over public bins; one release is a fixed plan, hence `tight`."""
    with refusals():
        event = histogram_event(
            noise=noise,
            scale=scale,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )
        result = {
            "mechanism": "histogram",
            "noise": noise,
            "scale": scale,
            **guarantee(relation, max_records_per_unit),
            "rho": float_up(event.rho),
            "pure_epsilon": _pure_epsilon(event),
            "delta": delta,
            "accountant": accountant,
            "epsilon": exact_epsilon(event, delta, accountant),
        }
    show(result, say_histogram(result), as_json)


def exact_epsilon(event: Event, delta: float, accountant: str) -> float:
    """Computes ε of one release; integer Gaussian noise has an exact curve of its own."""
    check_delta(delta)
    if (_pure_epsilon(event) or 0.0) > LARGEST_TABULATED:
        accountant = "zcdp"  # the smaller of it and the pure ε is what `tight` would report
    return epsilon_of_fixed([event], delta, accountant)


def _pure_epsilon(event: Event) -> float | None:
    """ε with δ = 0, where the event has one."""
    return float_up(event.epsilon) if isinstance(event, DiscreteLaplaceEvent) else None


def say_histogram(result: dict[str, Any]) -> str:
    """Says the price, and the pure ε that Laplace noise has when released alone."""
    pure = result["pure_epsilon"]
    alone = "" if pure is None else f"; ε = {up(pure)} with δ = 0 if nothing else is released"
    return f"{say_epsilon(result)}{alone}"


def voting(
    noise_std: Annotated[float, typer.Option(help="Std of the noise on each count, in votes.")],
    iterations: Iterations,
    delta: Delta,
    votes_per_record: VotesPerRecord = 1,
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices the noisy nearest-neighbour votes of private evolution (Aug-PE), all rounds."""
    with refusals():
        votes = GaussianVoting(
            noise_std=noise_std,
            iterations=iterations,
            votes_per_record=votes_per_record,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
        )
        event, mu = votes.event, gaussian_mu_of([votes.event])
        ideal = math.sqrt(2.0 * float_up(event.rho))
        result = {
            "mechanism": "voting",
            "noise_std": noise_std,
            "iterations": iterations,
            "votes_per_record": votes_per_record,
            **guarantee(relation, max_records_per_unit),
            "mu": mu,
            "rho": float_up(event.rho),
            "delta": delta,
            "epsilon": epsilon_of([event], delta, "tight"),
            "epsilon_continuous_noise": gaussian_epsilon(ideal, delta),
            "epsilon_zcdp": epsilon_of([event], delta, "zcdp"),
        }
    if mu is not None:
        price = say_epsilon(result, accountant=f"exact, μ <= {rounded_up(mu, '.6g')}")
    else:
        price = say_epsilon(result, accountant="exact")
    show(result, price, as_json)
