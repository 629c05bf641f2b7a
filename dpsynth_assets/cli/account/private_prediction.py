"""Prices of private prediction: private tokens, and the test that spares some of them.

Amin et al. 2024, Theorem 1: a private token costs one softmax draw of bounded range and, where
the public-token test runs, one AboveThreshold instance.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import typer

from dpsynth_assets.cli.account.options import (
    BATCHES_PER_PASS,
    LOGIT_SLACK,
    Accountant,
    AsJson,
    AtEpsilon,
    BatchesPerPass,
    BatchSize,
    ClipBound,
    ContextsChanged,
    Delta,
    Load,
    LogitSlack,
    MaybeRecords,
    RecordsPerUnit,
    Relation,
    SvtNoiseScale,
    Temperature,
    at_least_one,
)
from dpsynth_assets.cli.account.printing import (
    down_significant,
    guarantee,
    refusals,
    say_epsilon,
    show,
    up,
    up_significant,
)
from dpsynth_assets.privacy.accounting import (
    epsilon_of,
    privacy_profile,
    zcdp_epsilon_closed_form,
)
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event, PureEvent
from dpsynth_assets.privacy.renyi import float_up
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.privacy.sparse_vector import above_threshold_epsilon
from dpsynth_assets.privacy.units import NeighboringRelation

PrivateTokens = Annotated[int, typer.Option(help="Private tokens of each batch, r.")]


@dataclass(frozen=True, kw_only=True)
class PrivatePrediction:
    """Public settings of private prediction: everything its price depends on.

    Attributes:
        batch: Declared facts of the batches.
        clip_bound: c.
        temperature: τ.
        private_tokens: r, of each batch.
        svt_noise_scale: σ of the public-token test; None where no test runs.
    """

    batch: BatchTerms
    clip_bound: float
    temperature: float
    private_tokens: int
    svt_noise_scale: float | None

    def with_tokens(self, private_tokens: int) -> "PrivatePrediction":
        """The same settings with another number of private tokens."""
        return replace(self, private_tokens=private_tokens)

    def with_batch_size(self, expected_batch_size: int) -> "PrivatePrediction":
        """The same settings with another batch size."""
        return replace(self, batch=replace(self.batch, expected_batch_size=expected_batch_size))

    @property
    def selection(self) -> BoundedRangeEvent:
        """All softmax draws."""
        eta = self.batch.eta(self.clip_bound, self.temperature)
        return BoundedRangeEvent(eta=eta, count=self.private_tokens)

    @property
    def test(self) -> PureEvent | None:
        """All AboveThreshold instances: one for each private token, none after the last."""
        if self.svt_noise_scale is None:
            return None
        epsilon = above_threshold_epsilon(self.batch, self.svt_noise_scale)
        return PureEvent(epsilon=epsilon, count=self.private_tokens)

    @property
    def events(self) -> list[Event]:
        """What one batch spends."""
        return [self.selection] if self.test is None else [self.selection, self.test]

    def price(self, delta: float, accountant: str) -> dict[str, Any]:
        """Computes every number of the price, ε rounded up."""
        test = self.test
        selection_rho = _rho_of_one(self.selection)
        test_rho = Fraction(0) if test is None else _rho_of_one(test)
        each = selection_rho + test_rho
        rho = float_up(each * self.private_tokens)
        share = float(test_rho / each)
        return {
            "expected_batch_size": self.batch.expected_batch_size,
            "clip_bound": self.clip_bound,
            "temperature": self.temperature,
            "private_tokens": self.private_tokens,
            "svt_noise_scale": self.svt_noise_scale,
            "logit_slack": self.batch.logit_slack,
            "batches_per_pass": self.batch.batches_per_pass,
            "load": self.batch.load,
            "contexts_changed": self.batch.contexts_changed,
            **guarantee(self.batch.relation, self.batch.max_records_per_unit),
            "eta": self.selection.eta,
            "svt_epsilon_per_token": None if test is None else test.epsilon,
            "rho_per_token": float_up(each),
            "rho_per_token_selection": float_up(selection_rho),
            "rho_per_token_test": float_up(test_rho),
            "svt_share": share,
            "break_even_private_fraction": None if test is None else float(selection_rho / each),
            "rho": rho,
            "delta": delta,
            "accountant": accountant,
            "epsilon": epsilon_of(self.events, delta, accountant),
            "epsilon_closed_form": zcdp_epsilon_closed_form(rho, delta),
        }


def _rho_of_one(event: BoundedRangeEvent | PureEvent) -> Fraction:
    return replace(event, count=1).rho


def private_prediction(  # noqa: PLR0913 - one argument an option
    expected_batch_size: BatchSize,
    clip_bound: ClipBound,
    temperature: Temperature,
    private_tokens: PrivateTokens,
    delta: Delta,
    svt_noise_scale: SvtNoiseScale = None,
    at_epsilon: AtEpsilon = None,
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
    """Prices private tokens with or without the public-token test (Theorem 1, Amin 2024)."""
    with refusals():
        settings = PrivatePrediction(
            batch=BatchTerms(
                expected_batch_size=expected_batch_size,
                relation=relation,
                max_records_per_unit=max_records_per_unit,
                logit_slack=logit_slack,
                batches_per_pass=batches_per_pass,
                load=load,
                contexts_changed=contexts_changed,
            ),
            clip_bound=clip_bound,
            temperature=temperature,
            private_tokens=private_tokens,
            svt_noise_scale=svt_noise_scale,
        )
        result = {
            "mechanism": "private-prediction",
            **settings.price(delta, accountant),
            **public_batches(records, settings),
        }
        if at_epsilon is not None:
            result["at_epsilon"] = at_epsilon
            result["delta_at_epsilon"] = float(
                privacy_profile(settings.events, [at_epsilon], accountant)[0]
            )
    show(result, say_private_prediction(result), as_json)


def public_batches(records: int | None, settings: PrivatePrediction) -> dict[str, Any]:
    """How many batches and private tokens a public number of records makes; empty if private.

    A number of batches taken from a private count would reveal it (errata B-001.2).
    """
    if records is None:
        return {}
    at_least_one(records=records)
    batches = max(1, records // settings.batch.expected_batch_size)
    in_all = batches * settings.private_tokens
    return {"records": records, "batches": batches, "private_tokens_in_all": in_all}


def say_private_prediction(result: dict[str, Any]) -> list[str]:
    """Says the price, what the test takes of it, and when the test pays off."""
    sentences = [say_epsilon(result)]
    if result["svt_noise_scale"] is not None:
        fraction = down_significant(100 * result["break_even_private_fraction"], 3)
        sentences.append(
            f"The public-token test takes {result['svt_share']:.1%} of ρ = "
            f"{up_significant(result['rho'])}; it pays off where fewer than {fraction}% of the "
            "tokens are private."
        )
    if "batches" in result:
        sentences.append(
            f"{result['records']} records, declared public, make {result['batches']} batches: "
            f"{result['private_tokens_in_all']} private tokens in all, at no further cost."
        )
    if "delta_at_epsilon" in result:
        delta = up_significant(result["delta_at_epsilon"])
        sentences.append(f"At ε = {declared(result['at_epsilon'])}: δ = {delta}.")
    return sentences


def svt(  # noqa: PLR0913 - one argument an option
    expected_batch_size: BatchSize,
    noise_scale: Annotated[float, typer.Option(help="Scale σ of the threshold's Laplace noise.")],
    private_tokens: PrivateTokens,
    delta: Delta,
    accountant: Accountant = "zcdp",
    logit_slack: LogitSlack = LOGIT_SLACK,
    batches_per_pass: BatchesPerPass = BATCHES_PER_PASS,
    load: Load = 1.0,
    contexts_changed: ContextsChanged = "toggle",
    relation: Relation = NeighboringRelation.ADD_REMOVE,
    max_records_per_unit: RecordsPerUnit = 1,
    as_json: AsJson = False,
) -> None:
    """Prices the public-token test alone: one AboveThreshold for each private token."""
    with refusals():
        batch = BatchTerms(
            expected_batch_size=expected_batch_size,
            relation=relation,
            max_records_per_unit=max_records_per_unit,
            logit_slack=logit_slack,
            batches_per_pass=batches_per_pass,
            load=load,
            contexts_changed=contexts_changed,
        )
        epsilon = above_threshold_epsilon(batch, noise_scale)
        event = PureEvent(epsilon=epsilon, count=private_tokens)
        result = {
            "mechanism": "svt",
            "expected_batch_size": expected_batch_size,
            "noise_scale": noise_scale,
            "private_tokens": private_tokens,
            "logit_slack": logit_slack,
            "batches_per_pass": batches_per_pass,
            "load": load,
            "contexts_changed": contexts_changed,
            **guarantee(relation, max_records_per_unit),
            "epsilon_per_token": epsilon,
            "rho_per_token": float_up(_rho_of_one(event)),
            "rho": float_up(event.rho),
            "pure_epsilon": float_up(Fraction(epsilon) * private_tokens),
            "delta": delta,
            "accountant": accountant,
            "epsilon": epsilon_of([event], delta, accountant),
        }
    say = (
        f"{say_epsilon(result)}; ε = {up(result['pure_epsilon'])} with δ = 0 by basic composition "
        f"of {private_tokens} tests of ε = {up(epsilon)} each"
    )
    show(result, say, as_json)
