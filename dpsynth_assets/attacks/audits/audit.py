"""Defines an audit of a mechanism: a claim, a measurement, and bugs that it must detect."""

import importlib.metadata
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpsynth_assets.attacks.circumstances import circumstances
from dpsynth_assets.privacy.events import Event, event_to_json, flatten
from dpsynth_assets.privacy.guarantees import NeighboringRelation

FALSE_ALARM = 1e-6
"""Probability with which one statistical audit of a correct installation fails."""

EX_POST = "ex_post"
"""Stands for releases without an accounting event."""

EVERY_RELEASE = "every_release"
"""Stands for what all releases share: noise source, accountant, ledger."""

Charge = tuple[str, Event | None]
"""What made a release, by the name in its charge, e.g. `ctcl`; its event, None where ex-post."""

ADD_REMOVE, REPLACE_ONE = NeighboringRelation.ADD_REMOVE, NeighboringRelation.REPLACE_ONE

ROUNDING = 1e-9
"""Exact audits compare float64 results; a claim may be exceeded by this share."""


class AuditKind(StrEnum):
    """EXACT: likelihoods or totals are computed, a failure is a proof. STATISTICAL: samples."""

    EXACT = "exact"
    STATISTICAL = "statistical"


class Bug(StrEnum):
    """Mistakes found in papers, libraries and published code, which the audits must notice."""

    HALVED_NOISE = "halved noise"
    WRONG_RELATION = "wrong neighbouring relation"
    PRIVATE_DENOMINATOR = "divides by the private |Z|"
    EVEN_GAMMA = "printed γ for even batches"
    SHUFFLED = "shuffling accounted as Poisson sampling"
    SEPARATE_CALIBRATION = "separate calibration of a joint release"
    INTEGER_NOISE = "integer noise multiplier"
    RENOISED = "noise drawn again at each start"
    PUBLIC_SEED = "noise from seed 42"
    UNCLIPPED = "contributions left unclipped"
    GREEDY = "most likely token instead of a draw"
    CLASSICAL_GAUSSIAN = "classical Gaussian formula above ε = 1"
    MEAN_SHIFT = "mixture of shifts replaced by its mean"
    TIED_USE_FORGOTTEN = "second use of a tied parameter forgotten in its norm"
    CLIPPED_BY_PART = "clipped by micro-batch instead of by record"
    ONE_UNIFORM = "token drawn by one uniform of 53 bits"
    UNBOUNDED_PASS = "as many rows in a forward pass as its batches hold"
    SPREAD_VOTES = "votes of one record taken for votes of several"
    ROUNDED_BY_PLACE = "nearest row by sums that round by the row's place"
    SHARED_STATES = "hidden states of private records read in shared passes"
    TERMS_OF_THE_LONGEST = "norms rounded up by the length of the longest batch mate"
    SHARED_PASSES_NOT_CHARGED = "nothing kept back for what batch mates move"
    MIXED_WITH_OTHER_TEXTS = "embedding that follows the other texts of its call"
    TAKEN_IDS = "a replaced record takes an id that is in use, and two records go"
    PROMISE_UNCHECKED = "promise to secrets left out where no method protects them"
    ROUNDED_TO_NEAREST = "bounds written to the nearest digit"
    ONE_DELTA = "δ of one rule after a switch from a plan to the filter"
    CONTINUOUS_NOISE = "integer noise priced as continuous noise"
    ODOMETER = "reading of an odometer stated as what is guaranteed"
    NO_NOISE = "noise forgotten"
    COUNTED_TWICE = "what a record adds is added twice"
    FOLLOWS_COMPANY = "logits that follow the other rows of their pass"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one measurement: it passes where `observed` is at most `claimed`.

    Attributes:
        claimed: What the kernel promises, in the audit's measure.
        observed: What was attained, or proven to be attained.
        note: Where: the false-positive rate of a test, or the worst case.
        measured: The same in numbers, where a charge asks for it.
    """

    claimed: float
    observed: float
    note: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Says whether the claim survives."""
        return self.observed <= self.claimed + ROUNDING * max(1.0, abs(self.claimed))


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """One run of one audit on one installation.

    Attributes:
        name: The audit.
        kind: `exact` or `statistical`.
        claimed: As in `Finding`.
        observed: As in `Finding`.
        note: As in `Finding`.
        passed: Whether the claim survived.
        seconds: Wall time.
        version: Installed version of this package.
        finished_at: Day, UTC, ISO 8601: labels repeat it, and an attack may follow a private stage.
        bug: The bug that was planted; None for the real code.
        settings: Digest of the settings that were attacked; empty where a mechanism was audited,
            whose claim holds for all of them.
        circumstances: Digest of the code, libraries and machine it was found with. It stays on
            the machine: no label prints it.
        measured: As in `Finding`; nor does a label print this with it.
    """

    name: str
    kind: str
    claimed: float
    observed: float
    passed: bool
    seconds: float
    version: str
    finished_at: str
    note: str = ""
    bug: str | None = None
    settings: str = ""
    circumstances: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, kind: AuditKind, finding: Finding, started: float, bug: Bug | None = None
    ) -> "AuditResult":
        """Records a finding, now; `started` is what `time.perf_counter` said at the start."""
        return cls(
            name=name,
            kind=str(kind),
            claimed=float(finding.claimed),
            observed=float(finding.observed),
            note=finding.note,
            passed=bool(finding.passed),
            seconds=time.perf_counter() - started,
            version=importlib.metadata.version("dpsynth_assets"),
            finished_at=datetime.now(UTC).date().isoformat(),
            bug=None if bug is None else str(bug),
            circumstances=circumstances(),
            measured=dict(finding.measured),
        )

    def printed(self) -> dict[str, Any]:
        """Fields of the result that a label may print."""
        fields = asdict(self)
        del fields["circumstances"], fields["measured"]
        return fields

    @property
    def good(self) -> bool:
        """Says whether all is well: real code passed, or code with a planted bug did not."""
        return self.passed == (self.bug is None)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A claim of the kernel and how it is tested.

    Attributes:
        name: Unique, in kebab case.
        mechanism: The audited mechanism, in words.
        claim: The claim in one sentence.
        observe: Measures the real code.
        planted: For each bug, a measurement of code that has it; each must fail.
        events: Event types (`event_to_json`) whose releases rest on the claim, or `EX_POST` or
            `EVERY_RELEASE`; of an attack on methods, their names instead.
        measure: What `claimed` and `observed` count.
        kind: Whether it is exact.
    """

    name: str
    mechanism: str
    claim: str
    observe: Callable[[], Finding] = field(repr=False)
    planted: Mapping[Bug, Callable[[], Finding]] = field(repr=False)
    events: tuple[str, ...] = (EVERY_RELEASE,)
    measure: str = "true-positive rate"
    kind: AuditKind = AuditKind.EXACT

    @property
    def false_alarm(self) -> float:
        """Probability that correct code fails."""
        return FALSE_ALARM if self.kind is AuditKind.STATISTICAL else 0.0

    @classmethod
    def named(
        cls,
        name: str,
        observe: Callable[[], Finding],
        planted: Mapping[Bug, Callable[[], Finding]],
    ) -> Self:
        """The audit whose words stand in `claims.yaml` under its name."""
        words = dict(claims()[name])
        kind = AuditKind(words.pop("kind", AuditKind.EXACT))
        events = tuple(words.pop("events", [EVERY_RELEASE]))
        return cls(name=name, observe=observe, planted=planted, kind=kind, events=events, **words)

    def run(self, bug: Bug | None = None) -> AuditResult:
        """Measures the real code, or code with one planted bug.

        Raises:
            KeyError: The audit does not plant this bug.
        """
        observe = self.observe if bug is None else self.planted[bug]
        started = time.perf_counter()
        return AuditResult.of(self.name, self.kind, observe(), started, bug)


@cache
def claims() -> Mapping[str, Mapping[str, Any]]:
    """What each audit claims, by its name: the words of `claims.yaml`."""
    import yaml

    words: dict[str, Any] = yaml.safe_load(
        (Path(__file__).parent / "claims.yaml").read_text("utf-8")
    )
    return words


def event_types(event: Event | None) -> tuple[str, ...]:
    """Names the event types that a ledger entry rests on, sorted; `EX_POST` where it has none."""
    if event is None:
        return (EX_POST,)
    return tuple(sorted({event_to_json(atom)["type"] for atom in flatten(event)}))


# Tests of a privacy claim from samples: what a counterexample must look like to be believed.
#
# A claim is a curve: the largest true-positive rate any test may reach at a false-positive rate.
# An audit draws scores with and without one record and refutes the claim where it proves a rate
# above the curve. Each test here refutes a true claim with probability at most its `false_alarm`
# (default `FALSE_ALARM`), for any scores, as long as they are independent. A claim that is
# not refuted is not proven.
# Shape letters: N scores of each side, M false-positive rates, E values of ε.

THRESHOLDS = 99
"""Candidate thresholds, quantiles of the first half of the scores."""

EPSILONS = np.concatenate([np.linspace(0.0, 4.0, 81), np.linspace(4.25, 20.0, 64)])
"""Where a claim is read off its privacy profile; fewer points would only make it looser."""

Curve = Callable[[np.ndarray], np.ndarray]
"""(M,) false-positive rates in [0, 1] to (M,) largest true-positive rates; non-decreasing."""


def lower_rate(hits: np.ndarray, trials: int, false_alarm: float) -> np.ndarray:
    """Bounds a probability from below (Clopper-Pearson), wrong with at most `false_alarm`."""
    from scipy import stats

    hits = np.asarray(hits)
    bound = stats.beta.ppf(false_alarm, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits > 0, bound, 0.0)


def upper_rate(hits: np.ndarray, trials: int, false_alarm: float) -> np.ndarray:
    """Bounds a probability from above (Clopper-Pearson), wrong with at most `false_alarm`."""
    return 1.0 - lower_rate(trials - np.asarray(hits), trials, false_alarm)


def audit_scores(
    with_record: np.ndarray,
    without_record: np.ndarray,
    curve: Curve,
    false_alarm: float = FALSE_ALARM,
) -> Finding:
    """Tests a claim on scores that tend to be higher where the record took part.

    Args:
        with_record: (N,) independent scores of runs with the record.
        without_record: (N',) independent scores of runs without it.
        curve: The claim.
        false_alarm: β in (0, 1).

    Returns:
        The true-positive rate that is proven, against what the claim allows; it passes with
        probability at least 1 − β if the claim holds.

    Raises:
        ValueError: A side has fewer than four scores or a score is NaN.

    **Privacy** The threshold is chosen on the first half of each side, the rates are bounded on
    the second, β/2 each. Where both bounds hold, a true claim implies TPR_low <= TPR <=
    curve(FPR) <= curve(FPR_high), as the curve does not decrease.
    """
    halves = [_halves(scores) for scores in (with_record, without_record)]
    pooled = np.concatenate([first for first, _ in halves])
    thresholds = np.unique(np.quantile(pooled, np.linspace(0.005, 0.995, THRESHOLDS)))
    rates = [_rates(first, thresholds, false_alarm) for first, _ in halves]
    best = thresholds[np.argmax(_probit(rates[0][0]) - _probit(curve(rates[1][1])))]
    low = _rates(halves[0][1], np.array([best]), false_alarm)[0]
    high = _rates(halves[1][1], np.array([best]), false_alarm)[1]
    return _finding(low, high, curve)


def told_apart(present: np.ndarray, absent: np.ndarray, claimed: Event) -> Finding:
    """Tests an event on scores with a record and without it (`audit_scores`)."""
    return audit_scores(present, absent, event_curve([claimed]))


def audit_event_counts(
    hits: int, alarms: int, trials: int, curve: Curve, false_alarm: float = FALSE_ALARM
) -> Finding:
    """Tests a claim on one outcome that was named before any run: its count on either side.

    Args:
        hits: Runs with the record that ended in the outcome.
        alarms: Runs without it that did.
        trials: Independent runs a side.
        curve: The claim.
        false_alarm: β in (0, 1).
    """
    low = lower_rate(np.array([hits]), trials, false_alarm / 2)
    high = upper_rate(np.array([alarms]), trials, false_alarm / 2)
    return _finding(low, high, curve)


def _finding(low: np.ndarray, high: np.ndarray, curve: Curve) -> Finding:
    """What a proven (1,) true-positive rate says of a claim at (1,) bounded false-positive rate."""
    return Finding(
        claimed=float(curve(high)[0]),
        observed=float(low[0]),
        note=f"at a false-positive rate of at most {float(high[0]):.3f}",
    )


def pure_curve(epsilon: float) -> Curve:
    """The trade-off of pure ε-DP."""
    return profile_curve(np.array([epsilon]), np.zeros(1))


def profile_curve(epsilons: np.ndarray, deltas: np.ndarray) -> Curve:
    """The trade-off of (ε, δ(ε))-DP at every given ε together.

    Args:
        epsilons: (E,) values >= 0.
        deltas: (E,) bounds on δ that hold for both orders of the neighbours.

    Returns:
        Each pair bounds the rate by e^ε·rate + δ, and by 1 − e^(−ε)·(1 − δ − rate), which is the
        same inequality for the opposite outcome and the opposite order.
    """
    grown, kept = np.exp(epsilons), np.exp(-np.asarray(epsilons))

    def curve(rates: np.ndarray) -> np.ndarray:
        rates = np.asarray(rates, dtype=np.float64)[..., None]
        above = (grown * rates + deltas).min(axis=-1)
        below = (1.0 - kept * (1.0 - deltas - rates)).min(axis=-1)
        return np.clip(np.minimum(above, below), 0.0, 1.0)

    return curve


def event_curve(events: Sequence[Event]) -> Curve:
    """The trade-off that our own accountant claims for stored events: what the ledger relies on."""
    return profile_curve(EPSILONS, _claimed_deltas(tuple(events)))


@lru_cache(maxsize=64)
def _claimed_deltas(events: tuple[Event, ...]) -> np.ndarray:
    from dpsynth_assets.privacy.accounting import privacy_profile

    deltas = privacy_profile(events, EPSILONS.tolist(), "tight")
    return np.asarray(deltas, dtype=np.float64)


def _halves(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = np.asarray(scores, dtype=np.float64).reshape(-1)
    if len(scores) < 4 or np.isnan(scores).any():
        raise ValueError(f"Expected at least 4 scores and no NaN, got {len(scores)} scores.")
    middle = len(scores) // 2
    return scores[:middle], scores[middle:]


def _probit(rates: np.ndarray) -> np.ndarray:
    """Stretches rates so that a gap near 0 or 1 weighs as much as one in the middle."""
    from scipy import stats

    return stats.norm.ppf(np.clip(rates, 1e-9, 1 - 1e-9))


def _rates(
    scores: np.ndarray, thresholds: np.ndarray, false_alarm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds P(score >= threshold) from below and from above, each wrong with β/2 at most."""
    hits = len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left")
    level = false_alarm / 2
    return lower_rate(hits, len(scores), level), upper_rate(hits, len(scores), level)
