"""The noise that secret protection needs in every round, exact for Gaussians and mixtures."""

import math
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import AsJson, at_least_one
from dpsynth_assets.cli.account.printing import refusals, show, up_significant
from dpsynth_assets.cli.account.secret import (
    Adjacency,
    Prior,
    Released,
    Rounds,
    SamplingProbabilities,
    held_by,
    numbers,
    relation_of,
    sampled_secret,
    shift_of_one_record,
)
from dpsynth_assets.cli.calibrate.gaussian import ROUNDING
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.privacy.secret_noise import joint_factor, secret_noise_std
from dpsynth_assets.privacy.secret_protection import (
    gaussian_budget,
    gaussian_posterior,
    poisson_binomial,
    posterior_of_events,
)


def secret(  # noqa: PLR0913 - one argument an option
    prior: Prior,
    posterior: Annotated[float, typer.Option(help="r: chance of naming it that is accepted.")],
    rounds: Rounds = 1,
    adjacency: Adjacency = "substitution",
    release: Released = "joint",
    occurrences: Annotated[int, typer.Option(help="Records that hold the secret, at most.")] = 1,
    sampling_probabilities: SamplingProbabilities = None,
    noise_floor: Annotated[
        float, typer.Option(help="Least noise std where records are drawn: rare ones need none.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Finds the noise std of each round that keeps a secret at (prior, posterior)."""
    with refusals():
        at_least_one(rounds=rounds, occurrences=occurrences)
        mu = gaussian_budget(prior, posterior)
        shift = shift_of_one_record(adjacency, release)
        chances = numbers(sampling_probabilities, "sampling-probabilities")
        most = len(chances) or occurrences
        noise_std = shift * most * math.sqrt(rounds) / mu * ROUNDING
        reached = gaussian_posterior(shift * most * math.sqrt(rounds) / noise_std, prior)
        if chances:
            shorter = shift / joint_factor(relation_of(adjacency))
            noise_std = shorter * secret_noise_std(
                count_probabilities=poisson_binomial(chances),
                prior=prior,
                posterior=posterior,
                steps=rounds,
                relation=relation_of(adjacency),
                noise_floor=noise_floor / shorter,
            )
            event = sampled_secret(noise_std, chances, adjacency, release, rounds)
            reached = posterior_of_events([event], prior)
        result = {
            "mechanism": "secret",
            "unit": "one secret",
            "prior": prior,
            "target_posterior": posterior,
            "rounds": rounds,
            "adjacency": adjacency,
            "release": release,
            "occurrences": most,
            "sampling_probabilities": chances or None,
            "noise_floor": noise_floor if chances else None,
            "mu": mu,
            "shift_of_one_record": shift,
            "noise_std": noise_std,
            "posterior": reached,
        }
    show(result, _say_noise(result), as_json)


def _say_noise(result: dict[str, Any]) -> str:
    drawn = ", each drawn at random" if result["sampling_probabilities"] else ""
    return (
        f"Noise std {up_significant(result['noise_std'], 6)} in each of {result['rounds']} rounds "
        f"keeps a secret named with {declared(result['prior'])} before at most "
        f"{up_significant(result['posterior'])} after ({result['release']} release, "
        f"{result['adjacency']} of {held_by(result['occurrences'])}{drawn})."
    )
