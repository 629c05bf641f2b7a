"""Private prediction: tokens from a softmax of mean clipped logits, and the test that spares some.

Amin et al. 2024, Theorem 1: a private token costs one softmax draw of bounded range and, where
the public-token test runs, one AboveThreshold instance. Both depend on the same facts of batches
that are decoded together.
"""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Literal

from dpsynth_assets.cli.pricing.commands import (
    Accountant,
    Answer,
    AtEpsilon,
    CountOrNone,
    Delta,
    Settings,
    TargetEpsilon,
    command,
    down_significant,
    exactly_one,
    say_delta,
    say_epsilon,
    up_significant,
)
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import (
    largest_count,
    largest_token_count,
    smallest_batch_size,
)
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event, PureEvent
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon_closed_form, zcdp_rho
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

_CHARGED = {name: field.default for name, field in PrivatePredictionConfig.model_fields.items()}
"""What a plan charges by default: the same settings then have one price, here and in a plan."""


@dataclass(frozen=True, kw_only=True)
class PrivatePrediction(Settings):
    """Private tokens of batches decoded together, with or without the public-token test.

    Attributes:
        expected_batch_size: Fixed public prompts per batch, s.
        clip_bound: Bound c of clipped logits.
        temperature: Sampling temperature τ.
        private_tokens: Private tokens of each batch, r.
        svt_noise_scale: Scale σ of the public-token test's threshold noise; none: no test.
        records: Number of private records, if it is declared public.
        logit_slack: Largest move of a row's logits with the rows beside it, as methods charge it
            unless told otherwise; 0 where rounding does not count, as in the papers.
        batches_per_pass: Batches decoded in one forward pass, over which the slack adds up.
        load: Room of a forward pass for each batch, as a multiple of 4 s rows; for the slack.
        contexts_changed: toggle: a record's prompt comes or goes. replace: it turns into another,
            as a prompt with two records does.
    """

    mechanism = "private-prediction"

    expected_batch_size: int
    clip_bound: float
    temperature: float
    private_tokens: int
    svt_noise_scale: float | None = None
    records: CountOrNone = None
    logit_slack: float = _CHARGED["logit_slack"]
    batches_per_pass: int = _CHARGED["batches_per_forward"]
    load: float = 1.0
    contexts_changed: Literal["toggle", "replace"] = "toggle"

    @property
    def batch(self) -> BatchTerms:
        """The same facts as mechanisms hold them."""
        return BatchTerms(**{each.name: getattr(self, each.name) for each in fields(BatchTerms)})

    @property
    def selection(self) -> BoundedRangeEvent:
        """All softmax draws."""
        mechanism = MeanTokenMechanism(
            batch=self.batch, clip_bound=self.clip_bound, temperature=self.temperature
        )
        return mechanism.event(self.private_tokens)

    @property
    def test(self) -> PureEvent | None:
        """All AboveThreshold instances, where the test runs: one for each private token.

        The threshold is public and changes no price.
        """
        if self.svt_noise_scale is None:
            return None
        test = PublicTokenTest(batch=self.batch, noise_scale=self.svt_noise_scale, threshold=0.0)
        return test.event(self.private_tokens)

    @property
    def events(self) -> list[Event]:
        """What one batch spends."""
        return [self.selection] if self.test is None else [self.selection, self.test]

    def with_most_tokens(
        self, epsilon: float, delta: float, accountant: str
    ) -> "PrivatePrediction":
        """Finds the most private tokens whose draws and tests cost at most `epsilon`."""
        if self.test is None:
            count = largest_token_count(
                eta=self.selection.eta, target_epsilon=epsilon, delta=delta, accountant=accountant
            )
            return replace(self, private_tokens=count)

        def fits(count: int) -> bool:
            events = replace(self, private_tokens=count).events
            return count == 0 or epsilon_of(events, delta, accountant) <= epsilon

        each = sum(event.rho for event in replace(self, private_tokens=1).events)
        ceiling = int(zcdp_rho(epsilon, delta) / float(each)) + 1
        while fits(ceiling):
            ceiling *= 2
        return replace(self, private_tokens=largest_count(fits, ceiling))

    def with_smallest_batches(
        self, epsilon: float, delta: float, accountant: str
    ) -> "PrivatePrediction":
        """Finds the smallest batch size at which all draws and tests cost at most `epsilon`."""
        size = smallest_batch_size(
            lambda size: replace(self, expected_batch_size=size).events,
            target_epsilon=epsilon,
            delta=delta,
            accountant=accountant,
        )
        return replace(self, expected_batch_size=size)

    def cost(self, delta: float, accountant: str) -> dict[str, Any]:
        """The settings with every number of their price, ε rounded up.

        Batches and tokens in all are counted where the number of records is public: a number of
        batches taken from a private count would reveal it (errata B-001.2).
        """
        several = self.logit_slack > 0 and self.batches_per_pass > 1
        if accountant == "tight" and several and self.test is not None:
            raise ValueError(
                "Expected --accountant zcdp where batches of a pass draw at different steps and "
                "rounding is charged, got tight. Set it, --batches-per-pass 1 or --logit-slack 0."
            )
        test, selection = self.test, replace(self.selection, count=1).rho
        tested = Fraction(0) if test is None else replace(test, count=1).rho
        each = selection + tested
        rho = float_up(each * self.private_tokens)
        result = self.priced(
            self.events,
            delta,
            accountant,
            eta=self.selection.eta,
            svt_epsilon_per_token=None if test is None else test.epsilon,
            rho_per_token=float_up(each),
            rho_per_token_selection=float_up(selection),
            rho_per_token_test=float_up(tested),
            svt_share=float(tested / each),
            break_even_private_fraction=None if test is None else float(selection / each),
            rho=rho,
            epsilon_closed_form=zcdp_epsilon_closed_form(rho, delta),
        )
        if self.records is not None:
            batches = max(1, self.records // self.expected_batch_size)
            result |= {"batches": batches, "private_tokens_in_all": batches * self.private_tokens}
        return result


@command()
def price(
    settings: PrivatePrediction,
    delta: Delta,
    at_epsilon: AtEpsilon = None,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Prices private tokens with or without the public-token test (Theorem 1, Amin 2024)."""
    result = settings.cost(delta, accountant)
    if at_epsilon is not None:
        reached = privacy_profile(settings.events, [at_epsilon], accountant)[0]
        result |= {"at_epsilon": at_epsilon, "delta_at_epsilon": float(reached)}
    return result, _say(result)


@command(without="expected_batch_size private_tokens")
def calibrate(
    settings: PrivatePrediction,
    epsilon: TargetEpsilon,
    delta: Delta,
    expected_batch_size: CountOrNone = None,
    private_tokens: CountOrNone = None,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Finds the most private tokens, or the smallest batch size, within an ε.

    Args:
        settings: The settings.
        epsilon: ε that must not be exceeded at δ.
        delta: Public δ of the guarantee, between 0 and 1.
        expected_batch_size: Batch size s; prints the most private tokens.
        private_tokens: Private tokens r; prints the smallest batch size.
        accountant: zcdp: valid for adaptive plans. tight: for a plan fixed beforehand.
    """
    exactly_one(expected_batch_size=expected_batch_size, private_tokens=private_tokens)
    if expected_batch_size is not None:
        settings = replace(settings, expected_batch_size=expected_batch_size)
        found = settings.with_most_tokens(epsilon, delta, accountant)
    else:
        settings = replace(settings, private_tokens=private_tokens or 0)
        found = settings.with_smallest_batches(epsilon, delta, accountant)
    result = {"target_epsilon": epsilon, **found.cost(delta, accountant)}
    return result, [
        f"{found.private_tokens} private tokens a batch with batches of "
        f"{found.expected_batch_size} stay within ε = {declared(epsilon)}.",
        *_say(result),
    ]


def _say(result: dict[str, Any]) -> list[str]:
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
    return [*sentences, *say_delta(result)]
