"""How many private tokens an ε allows, or how large batches must be for as many as wanted."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    BATCHES_PER_PASS,
    LOGIT_SLACK,
    Accountant,
    AsJson,
    BatchesPerPass,
    ClipBound,
    ContextsChanged,
    Delta,
    Load,
    LogitSlack,
    MaybeRecords,
    RecordsPerUnit,
    Relation,
    SvtNoiseScale,
    TargetEpsilon,
    Temperature,
    exactly_one,
    positive,
)
from dpsynth_assets.cli.account.printing import refusals, show
from dpsynth_assets.cli.account.private_prediction import (
    PrivatePrediction,
    public_batches,
    say_private_prediction,
)
from dpsynth_assets.privacy.accounting import epsilon_of, zcdp_rho
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import largest_token_count, smallest_batch_size
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.privacy.units import NeighboringRelation

LARGEST_COUNT = 1 << 40
"""Where a search gives up: no plan has as many tokens, or as large batches."""


def private_prediction(  # noqa: PLR0913 - one argument an option
    clip_bound: ClipBound,
    temperature: Temperature,
    epsilon: TargetEpsilon,
    delta: Delta,
    expected_batch_size: Annotated[
        int | None, typer.Option(help="Batch size s; prints the most private tokens.")
    ] = None,
    private_tokens: Annotated[
        int | None, typer.Option(help="Private tokens r; prints the smallest batch size.")
    ] = None,
    svt_noise_scale: SvtNoiseScale = None,
    records: MaybeRecords = None,
    accountant: Accountant = "zcdp",
    logit_slack: LogitSlack = LOGIT_SLACK,
    batches_per_pass: BatchesPerPass = BATCHES_PER_PASS,
    load: Load = 1.0,
    contexts_changed: ContextsChanged = "toggle",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Finds the most private tokens, or the smallest batch size, within an ε."""
    with refusals():
        exactly_one(expected_batch_size=expected_batch_size, private_tokens=private_tokens)
        positive(epsilon=epsilon)
        start = PrivatePrediction(
            batch=BatchTerms(
                expected_batch_size=1 if expected_batch_size is None else expected_batch_size,
                relation=relation,
                max_records_per_unit=max_records_per_unit,
                logit_slack=logit_slack,
                batches_per_pass=batches_per_pass,
                load=load,
                contexts_changed=contexts_changed,
            ),
            clip_bound=clip_bound,
            temperature=temperature,
            private_tokens=1 if private_tokens is None else private_tokens,
            svt_noise_scale=svt_noise_scale,
        )
        search = most_tokens if private_tokens is None else smallest_batches
        found = search(start, epsilon, delta, accountant)
        result = {
            "mechanism": "private-prediction",
            "target_epsilon": epsilon,
            **found.price(delta, accountant),
            **public_batches(records, found),
        }
    show(result, [_say_found(result), *say_private_prediction(result)], as_json)


def _say_found(result: dict[str, Any]) -> str:
    return (
        f"{result['private_tokens']} private tokens a batch with batches of "
        f"{result['expected_batch_size']} stay within ε = {declared(result['target_epsilon'])}."
    )


def most_tokens(
    settings: PrivatePrediction, target_epsilon: float, delta: float, accountant: str
) -> PrivatePrediction:
    """Finds the most private tokens whose draws and tests cost at most `target_epsilon`."""
    if settings.test is None:
        eta = settings.selection.eta
        return settings.with_tokens(
            largest_token_count(
                eta=eta, target_epsilon=target_epsilon, delta=delta, accountant=accountant
            )
        )

    def fits(count: int) -> bool:
        events = settings.with_tokens(count).events
        return count == 0 or epsilon_of(events, delta, accountant) <= target_epsilon

    each = sum(event.rho for event in settings.with_tokens(1).events)
    guess = int(zcdp_rho(target_epsilon, delta) / float(each))
    return settings.with_tokens(_last_that(fits, guess))


def smallest_batches(
    settings: PrivatePrediction, target_epsilon: float, delta: float, accountant: str
) -> PrivatePrediction:
    """Finds the smallest batch size at which all draws and tests cost at most `target_epsilon`."""

    def fails(batch_size: int) -> bool:
        if batch_size < 1:
            return True
        events = settings.with_batch_size(batch_size).events
        return epsilon_of(events, delta, accountant) > target_epsilon

    if settings.test is None and settings.batch.load == 1:
        size = smallest_batch_size(
            settings.batch,
            tokens=settings.private_tokens,
            clip_bound=settings.clip_bound,
            temperature=settings.temperature,
            target_epsilon=target_epsilon,
            delta=delta,
            accountant=accountant,
        )
        return settings.with_batch_size(size)

    if settings.private_tokens < 1:
        raise ValueError(f"Expected private_tokens >= 1, got {settings.private_tokens}.")
    rho_of_one = sum(event.rho for event in settings.with_batch_size(1).events)  # falls as 1/s²
    guess = int((float(rho_of_one) / zcdp_rho(target_epsilon, delta)) ** 0.5)
    return settings.with_batch_size(_last_that(fails, guess) + 1)


def _last_that(holds: Callable[[int], bool], guess: int) -> int:
    """Finds the largest n with `holds(n)`, true up to some n from 0 on, searching from `guess`."""
    low, high, step = 0, max(1, guess), 1
    if holds(high):
        low = high
        while holds(high := low + step):
            low, step = high, 2 * step
            if high > LARGEST_COUNT:
                raise ValueError(f"Expected a number below {LARGEST_COUNT}, found none.")
    else:
        while high - step > 0 and not holds(high - step):
            high, step = high - step, 2 * step
        low = max(0, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
