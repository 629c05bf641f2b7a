"""The audit of a mechanism: a claim, a measurement of it, and bugs it must notice."""

import importlib.metadata
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from dpsynth_assets.attacks.circumstances import circumstances
from dpsynth_assets.privacy.events import Event, event_to_json, flatten
from dpsynth_assets.privacy.units import NeighboringRelation

FALSE_ALARM = 1e-6
"""Probability with which one statistical audit of a correct installation fails."""

EX_POST = "ex_post"
"""Stands for releases without an accounting event."""

EVERY_RELEASE = "every_release"
"""Stands for what all releases share: noise source, accountant, ledger."""

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
    UNCUT = "cut samples accounted as Poisson sampling"
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
    FOLLOWS_COMPANY = "logits that follow the other rows of their pass"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one measurement: it passes where `observed` is at most `claimed`.

    Attributes:
        claimed: What the kernel promises, in the audit's measure.
        observed: What was attained, or proven to be attained.
        note: Where: the false-positive rate of a test, or the worst case.
    """

    claimed: float
    observed: float
    note: str = ""

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
        )

    def printed(self) -> dict[str, Any]:
        """Fields of the result that a label may print."""
        fields = asdict(self)
        del fields["circumstances"]
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
            `EVERY_RELEASE`.
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

    def run(self, bug: Bug | None = None) -> AuditResult:
        """Measures the real code, or code with one planted bug.

        Raises:
            KeyError: The audit does not plant this bug.
        """
        observe = self.observe if bug is None else self.planted[bug]
        started = time.perf_counter()
        return AuditResult.of(self.name, self.kind, observe(), started, bug)


def event_types(event: Event | None) -> tuple[str, ...]:
    """Names the event types that a ledger entry rests on, sorted; `EX_POST` where it has none."""
    if event is None:
        return (EX_POST,)
    return tuple(sorted({event_to_json(atom)["type"] for atom in flatten(event)}))
