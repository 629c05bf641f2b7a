"""Conditions of the release gate, each with what it expects beside what it found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up

SPENT: Final = "What the releases behind these rows cost stays spent; nothing of it is published."
_ANOTHER: Final = (
    "a release of another name is another draw, which is paid for, if the budget holds it"
)

PAID_FOR: Final = "rows_are_what_was_paid_for"


@dataclass(frozen=True)
class Condition:
    """One condition: whether it holds, and the texts that a check shows of it."""

    holds: bool
    expected: str
    observed: str
    remedy: str

    def shown(self) -> dict[str, str]:
        """Metadata of its check; where it does not hold, what to do and what was spent."""
        told = {"expected": self.expected, "observed": self.observed}
        return told if self.holds else told | {"remedy": self.remedy, "spent": SPENT}


def gate_conditions(
    *,
    spent: float,
    budget: float,
    chain_problems: Sequence[object],
    not_paid_for: str | None,
    texts: Sequence[str],
    has_canary: bool,
) -> dict[str, Condition]:
    """Conditions by the name of their check.

    Args:
        spent: Cumulative ε of the cohort.
        budget: Its declared ε.
        chain_problems: What is wrong with the ledger's chain; empty if nothing is.
        not_paid_for: Why rows are not those of the sealed release; None where they are.
        texts: Texts of the candidate.
        has_canary: Whether a declared canary occurs in them.

    **Privacy** A function of the candidate, the declaration and the ledger: post-processing.
    """
    with_text = sum(bool(text.strip()) for text in texts)
    return {
        "budget_kept": Condition(
            spent <= budget,
            f"cumulative ε of at most {declared(budget)}",
            f"ε = {epsilon_up(spent)}",
            "Raise the budget in the dataset file, if that is allowed, and materialise the corpus "
            "again, which is free.",
        ),
        "ledger_chain_valid": Condition(
            not chain_problems,
            "no problem of the ledger's chain",
            f"{len(chain_problems)} problems" if chain_problems else "none",
            "`dpsynth ledger verify` names them; restore the ledger from its last copy.",
        ),
        PAID_FOR: Condition(
            not_paid_for is None,
            "the rows of the release that the ledger sealed",
            not_paid_for or "these rows",
            "Materialise the candidate again: the stored release is used, free of charge.",
        ),
        "corpus_not_empty": Condition(
            with_text > 0,
            "at least one row with text",
            f"{with_text} of {len(texts)} rows",
            f"Look at the method's settings for lengths and filters; {_ANOTHER}.",
        ),
        "no_canary": Condition(
            not has_canary,
            "no declared canary",
            "at least one" if has_canary else "none",
            "If the list names words that public text has, too, correct evaluation.canaries and "
            "materialise the candidate again, which is free. Else the rows may copy records: leave "
            f"them unpublished; {_ANOTHER}.",
        ),
    }
