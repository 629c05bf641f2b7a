"""The release gate, as a pure decision and as blocking asset checks.

The gate looks at the candidate, at what the dataset file declares and at the ledger, and at no
private record: that a corpus was published, or held back, is post-processing of the candidate,
which the ledger has paid for. Canaries are part of that: they are codes from a declared list, and
given the list the answer follows from the candidate alone.

Dagster's blocking checks stop downstream steps of the same run; the publishing step evaluates the
same decision again, so a later run cannot go around it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.orchestration.metadata import check_result, check_specs
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger
from dpsynth_assets.releases.published_rows import published_problems
from dpsynth_assets.releases.store import StoredReleases, candidate_problem

PAID_FOR: Final = "rows_are_what_was_paid_for"
GATE: dict[str, str] = {
    "budget_kept": "The cohort's cumulative ε in the ledger is within its declared budget.",
    "ledger_chain_valid": "Every ledger entry has the hash that the next entry recorded.",
    PAID_FOR: (
        "The rows, and every release they were made from, are those whose hashes the ledger holds."
    ),
    "corpus_not_empty": "The corpus has at least one row of text.",
    "no_canary": (
        "No declared canary occurs in the corpus. Canaries are codes that were hidden in the "
        "private records to detect copying. The check reads no record."
    ),
}


class Candidate(NamedTuple):
    """Rows that may be published.

    Attributes:
        rows: The rows, with the column `reservation` that names their release.
        asset: Their asset, parts joined by `/`.
        store: Where their release lies.
    """

    rows: pl.DataFrame
    asset: str
    store: StoredReleases


SPENT: Final = "The releases behind these rows stay charged; the rows are not published."
_ANOTHER: Final = "a release with another name is a new draw and is charged, if the budget allows"


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


def evaluate_conditions(
    spec: PrivateDatasetSpec, budget: BudgetTerms, candidate: Candidate, ledger: Ledger
) -> dict[str, Condition]:
    """Conditions of publication, by the name of their check.

    **Privacy** A function of the candidate, the declaration and the ledger: post-processing.
    """
    spent, chain = ledger.spend(spec.account, budget).epsilon, ledger.verify().problems
    rows, asset, store = candidate
    not_paid_for = candidate_problem(rows, asset, spec.account, ledger, store)
    texts = rows["text"].to_list() if "text" in rows.columns else []
    with_text, has_canary = sum(bool(text.strip()) for text in texts), _has_canary(spec, texts)
    return {
        "budget_kept": Condition(
            spent <= budget.epsilon,
            f"cumulative ε of at most {declared(budget.epsilon)}",
            f"ε = {epsilon_up(spent)}",
            "Raise the budget in the dataset file, if that is allowed, and materialise the corpus "
            "again, which is free.",
        ),
        "ledger_chain_valid": Condition(
            not chain,
            "a ledger chain without problems",
            f"{len(chain)} problems" if chain else "none",
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
            "If the list names words that also occur in public text, correct evaluation.canaries "
            "and materialise the candidate again, which is free. Otherwise the rows may copy "
            f"records: do not publish them; {_ANOTHER}.",
        ),
    }


def _has_canary(spec: PrivateDatasetSpec, texts: list[str]) -> bool:
    from dpsynth_assets.attacks.leak_scan import contains_canary

    return contains_canary(texts, read_canaries(spec))


def read_canaries(spec: PrivateDatasetSpec) -> list[str]:
    """The declared canaries, one a line; none when none are declared."""
    declared = spec.evaluation.canaries
    if declared is None:
        return []
    path = Path(declared)
    path = path if path.is_absolute() else project_root() / path
    if path.suffix == ".parquet":
        return [str(value) for value in pl.read_parquet(path).to_series(0).to_list()]
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def corpus_check(
    spec: PrivateDatasetSpec, budget: BudgetTerms, candidate_key: dg.AssetKey
) -> dg.AssetChecksDefinition:
    """Blocking checks of one candidate: they show what they expect beside what they found."""
    asset = "/".join(candidate_key.path)

    @dg.multi_asset_check(
        name="__".join([*candidate_key.path, "gate"]),
        specs=check_specs(candidate_key, GATE, blocking=True),
        ins={"candidate": dg.AssetIn(candidate_key)},
    )
    def gate(
        candidate: pl.DataFrame, ledger: PrivacyLedger, release_store: ReleaseStore
    ) -> Iterator[dg.AssetCheckResult]:
        with public_section(f"The release gate of {spec.name}"):
            paid = Candidate(candidate, asset, release_store)
            conditions = evaluate_conditions(spec, budget, paid, ledger.open())
        for name, condition in conditions.items():
            yield dg.AssetCheckResult(
                check_name=name, passed=condition.holds, metadata=condition.shown()
            )

    return gate


def card_check(spec: PrivateDatasetSpec, planned: PlannedMethod) -> dg.AssetChecksDefinition:
    """Blocking check of one published corpus: rows, label and card are what the ledger sealed."""
    key = dg.AssetKey([spec.name, planned.folder, "corpus"])

    @dg.asset_check(asset=key, name="card_equals_ledger", blocking=True)
    @public_section(f"The card of {'/'.join(key.path)}")
    def card_equals_ledger(
        ledger: PrivacyLedger, release_store: ReleaseStore
    ) -> dg.AssetCheckResult:
        """Published rows, label and dataset card equal what the ledger has sealed."""
        from dpsynth_assets.report.cards import released_folder

        folder, book = released_folder(spec.name, planned.folder), ledger.open()
        problems = published_problems(spec, planned, folder, book, release_store)
        return check_result("rows, label and card as the ledger sealed them", problems)

    return card_equals_ledger
