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
    terms,
    up,
    up_significant,
)
from dpsynth_assets.cli.terminal import AsJson, answer, say, show_table
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import (
    largest_count,
    largest_token_count,
    smallest_batch_size,
)
from dpsynth_assets.privacy.directed_rounding import declared, rounded_up
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event, PureEvent
from dpsynth_assets.privacy.renyi import float_up, zcdp_epsilon_closed_form, zcdp_rho
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

_CHARGED = {name: field.default for name, field in PrivatePredictionConfig.model_fields.items()}
"""What a plan charges by default: the same settings then have one price, here and in a plan."""


@dataclass(frozen=True, kw_only=True)
class Batches(Settings):
    """The facts of batches that are decoded together, and the public-token test on them.

    Attributes:
        expected_batch_size: Fixed public prompts per batch, s.
        logit_slack: Largest move of a row's logits with the rows beside it, as methods charge it
            unless told otherwise; 0 where rounding does not count, as in the papers.
        batches_per_pass: Batches decoded in one forward pass, over which the slack adds up.
        load: Room of a forward pass for each batch, as a multiple of 4 s rows; for the slack.
        contexts_changed: toggle: a record's prompt comes or goes. replace: it turns into another,
            as a prompt with two records does.
    """

    mechanism = "svt"

    expected_batch_size: int
    logit_slack: float = _CHARGED["logit_slack"]
    batches_per_pass: int = _CHARGED["batches_per_forward"]
    load: float = 1.0
    contexts_changed: Literal["toggle", "replace"] = "toggle"

    @property
    def batch(self) -> BatchTerms:
        """The same facts as mechanisms hold them."""
        return BatchTerms(**{each.name: getattr(self, each.name) for each in fields(BatchTerms)})

    def tests(self, noise_scale: float, count: int) -> PureEvent:
        """Prices one AboveThreshold instance for each private token, none after the last.

        The threshold is public and changes no price.
        """
        test = PublicTokenTest(batch=self.batch, noise_scale=noise_scale, threshold=0.0)
        return test.event(count)


@dataclass(frozen=True, kw_only=True)
class Tokens(Batches):
    """Draws of tokens from a softmax of mean clipped logits.

    Attributes:
        clip_bound: Bound c of clipped logits.
        temperature: Sampling temperature τ.
    """

    mechanism = "tokens"

    clip_bound: float
    temperature: float

    def draws(self, count: int) -> BoundedRangeEvent:
        """Prices `count` private tokens of every batch."""
        mechanism = MeanTokenMechanism(
            batch=self.batch, clip_bound=self.clip_bound, temperature=self.temperature
        )
        return mechanism.event(count)


@command()
def price_tokens(
    settings: Tokens,
    delta: Delta,
    tokens: int | None = None,
    target_epsilon: float | None = None,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Prices private tokens: ε of a number of tokens, or the most tokens within an ε.

    Args:
        settings: The settings.
        delta: Public δ of the guarantee, between 0 and 1.
        tokens: Private tokens a batch; prints ε.
        target_epsilon: Target ε; prints the largest number of tokens.
        accountant: zcdp: valid for adaptive plans. tight: for a plan fixed beforehand.
    """
    exactly_one(tokens=tokens, target_epsilon=target_epsilon)
    if target_epsilon is not None:
        eta, target = settings.draws(0).eta, target_epsilon
        tokens = largest_token_count(
            eta=eta, target_epsilon=target, delta=delta, accountant=accountant
        )
    event = settings.draws(tokens or 0)
    of_draws = {"tokens": tokens, "eta": event.eta, "rho": float(event.rho)}
    result = settings.priced([event], delta, accountant, target_epsilon=target_epsilon, **of_draws)
    if target_epsilon is None:
        return result, [say_epsilon(result)]
    return result, [
        f"{tokens} private tokens a batch: ε = {up(result['epsilon'])} "
        f"of {declared(target_epsilon)} at {terms(result)}"
    ]


@command()
def price_test(
    settings: Batches,
    noise_scale: float,
    private_tokens: int,
    delta: Delta,
    accountant: Accountant = "zcdp",
) -> Answer:
    """Prices the public-token test alone: one AboveThreshold for each private token.

    Args:
        settings: The settings.
        noise_scale: Scale σ of the threshold's Laplace noise.
        private_tokens: Private tokens of each batch, r.
        delta: Public δ of the guarantee, between 0 and 1.
        accountant: zcdp: valid for adaptive plans. tight: for a plan fixed beforehand.
    """
    event = settings.tests(noise_scale, private_tokens)
    result = settings.priced(
        [event],
        delta,
        accountant,
        noise_scale=noise_scale,
        private_tokens=private_tokens,
        epsilon_per_token=event.epsilon,
        rho_per_token=float_up(rho_of_one(event)),
        rho=float_up(event.rho),
        pure_epsilon=float_up(Fraction(event.epsilon) * event.count),
    )
    return result, [
        f"{say_epsilon(result)}; ε = {up(result['pure_epsilon'])} with δ = 0 by basic composition "
        f"of {event.count} tests of ε = {up(event.epsilon)} each"
    ]


def rho_of_one(event: BoundedRangeEvent | PureEvent) -> Fraction:
    """Computes ρ of one draw of an event of several."""
    return replace(event, count=1).rho


@dataclass(frozen=True, kw_only=True)
class PrivatePrediction(Tokens):
    """Private tokens of each batch, with or without the public-token test.

    Attributes:
        private_tokens: Private tokens of each batch, r.
        svt_noise_scale: Scale σ of the public-token test's threshold noise; none: no test.
        records: Number of private records, if it is declared public.
    """

    mechanism = "private-prediction"

    private_tokens: int
    svt_noise_scale: float | None = None
    records: CountOrNone = None

    @property
    def selection(self) -> BoundedRangeEvent:
        """All softmax draws."""
        return self.draws(self.private_tokens)

    @property
    def test(self) -> PureEvent | None:
        """All AboveThreshold instances, where the test runs."""
        if self.svt_noise_scale is None:
            return None
        return self.tests(self.svt_noise_scale, self.private_tokens)

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
        test, selection = self.test, rho_of_one(self.selection)
        tested = Fraction(0) if test is None else rho_of_one(test)
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
def price_prediction(
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
def calibrate_prediction(
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


RECORDS = {"AGNews": 108_000, "Yelp": 504_000, "NYT Topics": 230_400}
"""Training records of each corpus (Table 11a of Amin et al. 2025)."""


@dataclass(frozen=True, kw_only=True)
class PublishedSetting(Tokens):
    """One row of Table 10 of Amin et al. 2025 for one corpus.

    The paper charges one record as one logit vector although its prompts hold two records (errata
    B-000.1); its numbers are reproduced under its own accounting: add/remove, fixed batch size.

    Attributes:
        dataset: Name of the corpus.
        target_epsilon: ε given to the tokens.
        tokens_printed: Private tokens of each batch as printed.
    """

    dataset: str
    target_epsilon: float
    tokens_printed: int
    clip_bound: float = 9.0
    temperature: float = 1.5
    logit_slack: float = 0.0

    @property
    def delta(self) -> float:
        """The paper's δ = n^(−1.1), a function of the number of records n."""
        return float(RECORDS[self.dataset]) ** -1.1

    def row(self) -> dict[str, Any]:
        """The setting, and the tokens that its ε buys by each accountant."""
        eta, target = self.draws(0).eta, self.target_epsilon
        bought = {
            f"tokens_{name}": largest_token_count(
                eta=eta, target_epsilon=target, delta=self.delta, accountant=name
            )
            for name in ("zcdp", "tight")
        }
        return self.facts(delta=self.delta, eta=eta, **bought)


_TABLE_10 = {
    (10.0, 64): (373, 337, 355),
    (9.9, 64): (367, 331, 349),
    (3.0, 256): (733, 642, 686),
    (2.9, 256): (689, 604, 645),
}

AMIN_2025_TABLE_10 = tuple(
    PublishedSetting(
        dataset=dataset, target_epsilon=epsilon, expected_batch_size=size, tokens_printed=tokens
    )
    for (epsilon, size), counts in _TABLE_10.items()
    for dataset, tokens in zip(RECORDS, counts, strict=True)
)
"""The twelve token counts of Table 10 (Appendix E.2)."""


def table10(as_json: AsJson = False) -> None:
    """Reproduces the token counts of Table 10 of Amin et al. 2025, and how many the same ε buys.

    Takes about a quarter of a minute: the tight counts compose every token adaptively.
    """
    rows = [setting.row() for setting in AMIN_2025_TABLE_10]
    answer(rows, as_json, lambda: _print_table10(rows))


def _print_table10(rows: list[dict[str, Any]]) -> None:
    columns = {
        "corpus": lambda row: row["dataset"],
        "ε": lambda row: declared(row["target_epsilon"]),
        "δ": lambda row: rounded_up(row["delta"], ".2e"),
        "batch size": lambda row: str(row["expected_batch_size"]),
        "printed": lambda row: str(row["tokens_printed"]),
        "zCDP": lambda row: str(row["tokens_zcdp"]),
        "tight": lambda row: str(row["tokens_tight"]),
        "more text": lambda row: f"+{row['tokens_tight'] / row['tokens_printed'] - 1:.0%}",
    }
    show_table(rows, columns, title="Private tokens a batch may emit: Table 10 of Amin et al. 2025")
    say("Add/remove of one record, one record a prompt, clip bound 9, temperature 1.5, δ = n^-1.1.")
