"""Decisions to publish that were taken by reading private text, each one a line of the ledger.

A release gate that compares a corpus with private text gives an exact answer about that text. No
accounting event covers an exact answer, so it charges nothing and no ε speaks of it. What can be
done is to count: every answer is recorded before anything follows from it, with a running number,
and the same candidate is never asked about twice.
"""

from collections import Counter
from dataclasses import dataclass, field

from dpsynth_assets.privacy.ledger.schema import LedgerEntry
from dpsynth_assets.privacy.ledger.terms import canonical_json, digest

PASS, HOLD = "pass", "hold"


@dataclass(frozen=True, kw_only=True)
class GateQuestion:
    """The question of a gate about one candidate corpus. Every field is public or already released.

    Attributes:
        cohort: Cohort whose records are compared.
        check: Name of the check that decides.
        candidate: SHA-256 of the candidate's texts in order.
        release: Reservation of the charge behind the candidate.
        code_version: Version of the check's code.
        run_id: Who asked; not part of the identity of the question.
    """

    cohort: str
    check: str
    candidate: str
    release: str
    code_version: str
    run_id: str = ""

    @property
    def key(self) -> str:
        """Identity of the question: the same texts are asked about once, for good."""
        return question_key(self.cohort, self.check, self.candidate)


def question_key(cohort: str, check: str, candidate: str) -> str:
    """Digest that names a question."""
    return digest({"cohort": cohort, "check": check, "candidate": candidate})


def decision_json(question: GateQuestion, *, passed: bool, count: int) -> str:
    """Parameters that a decision's entry holds.

    Args:
        question: What was asked.
        passed: The answer.
        count: Running number among the decisions of the cohort, >= 1.
    """
    return canonical_json(
        {
            "candidate": question.candidate,
            "count": count,
            "outcome": PASS if passed else HOLD,
            "release": question.release,
        }
    )


def passed(entry: LedgerEntry) -> bool:
    """Says whether a decision let its candidate through; anything unclear did not."""
    return entry.parameters.get("outcome") == PASS


@dataclass
class SeenDecisions:
    """Decisions of a chain up to some entry, and which cohorts were charged, for verification."""

    counts: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    charged: set[str] = field(default_factory=set)

    def problem(self, entry: LedgerEntry) -> str | None:
        """Says what is wrong with the next decision of the chain, and takes it in."""
        repeated = entry.key in self.keys
        self.keys.add(entry.key)
        self.counts[entry.cohort] += 1
        if repeated:
            return "decides about a candidate that was decided about before"
        if entry.cohort not in self.charged:
            return "decides for a cohort that was charged nothing"
        if entry.event_json is not None or entry.terms_json is not None:
            return "is a decision and holds a charge"
        try:
            told = entry.parameters
            own_key = question_key(entry.cohort, entry.mechanism, told["candidate"])
            count, outcome = told["count"], told["outcome"]
        except (TypeError, ValueError, KeyError) as error:
            return f"cannot be read as a decision ({type(error).__name__})"
        if entry.key != own_key or entry.reservation != own_key or outcome not in (PASS, HOLD):
            return "its key or outcome is not that of its question"
        if count != self.counts[entry.cohort]:
            return f"expected decision {self.counts[entry.cohort]} of its cohort, got {count}"
        return None
