"""Prices of token draws: softmax sampling of a mean of clipped logits."""

from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    BATCHES_PER_PASS,
    LOGIT_SLACK,
    Accountant,
    AsJson,
    BatchesPerPass,
    BatchSize,
    ClipBound,
    ContextsChanged,
    Delta,
    Load,
    LogitSlack,
    RecordsPerUnit,
    Relation,
    Temperature,
    exactly_one,
)
from dpsynth_assets.cli.account.printing import (
    guarantee,
    refusals,
    say_epsilon,
    show,
    terms,
    up,
)
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import largest_token_count
from dpsynth_assets.privacy.events import BoundedRangeEvent
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.privacy.units import NeighboringRelation


def tokens(  # noqa: PLR0913 - one argument an option
    expected_batch_size: BatchSize,
    clip_bound: ClipBound,
    temperature: Temperature,
    delta: Delta,
    tokens: Annotated[int | None, typer.Option(help="Private tokens a batch; prints ε.")] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Target ε; prints the largest number of tokens.")
    ] = None,
    accountant: Accountant = "zcdp",
    logit_slack: LogitSlack = LOGIT_SLACK,
    batches_per_pass: BatchesPerPass = BATCHES_PER_PASS,
    load: Load = 1.0,
    contexts_changed: ContextsChanged = "toggle",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices private tokens: ε of a number of tokens, or the most tokens within an ε."""
    with refusals():
        exactly_one(tokens=tokens, target_epsilon=target_epsilon)
        batch = BatchTerms(
            expected_batch_size=expected_batch_size,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
            logit_slack=logit_slack,
            batches_per_pass=batches_per_pass,
            load=load,
            contexts_changed=contexts_changed,
        )
        eta = batch.eta(clip_bound, temperature)
        if target_epsilon is not None:
            tokens = largest_token_count(
                eta=eta, target_epsilon=target_epsilon, delta=delta, accountant=accountant
            )
        event = BoundedRangeEvent(eta=eta, count=tokens or 0)
        epsilon = epsilon_of([event], delta, accountant)
    result = {
        "mechanism": "tokens",
        "expected_batch_size": expected_batch_size,
        "clip_bound": clip_bound,
        "temperature": temperature,
        "logit_slack": logit_slack,
        "batches_per_pass": batches_per_pass,
        "load": load,
        "contexts_changed": contexts_changed,
        **guarantee(relation, max_records_per_unit),
        "target_epsilon": target_epsilon,
        "tokens": tokens,
        "eta": eta,
        "rho": float(event.rho),
        "delta": delta,
        "accountant": accountant,
        "epsilon": epsilon,
    }
    show(result, say_epsilon(result) if target_epsilon is None else _say_tokens(result), as_json)


def _say_tokens(result: dict[str, Any]) -> str:
    return (
        f"{result['tokens']} private tokens a batch: ε = {up(result['epsilon'])} "
        f"of {declared(result['target_epsilon'])} at {terms(result)}"
    )
