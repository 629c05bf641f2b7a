"""The release gate, as a pure decision and as blocking asset checks.

Dagster's blocking checks stop downstream steps of the same run; the publishing step evaluates the
same decision again, so a later run cannot go around it. Each outcome is one bit about private
data, which docs/privacy.md names; no count, span or score leaves the gate.
"""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.private_section import private_section
from dpsynth_assets.resources.sensitive_store import SensitiveStore

GATE: dict[str, str] = {
    "budget_kept": "The cohort's cumulative ε in the ledger is within its declared budget.",
    "ledger_chain_valid": "Every ledger entry hashes to what the next entry recorded.",
    "corpus_not_empty": "The corpus has at least one row of text.",
    "no_canary": (
        "No planted canary occurs in the corpus: a code that was hidden in the private records, so "
        "that copying shows."
    ),
    "no_verbatim_private_span": (
        "No long span that is particular to one or two private units occurs verbatim."
    ),
}


def evaluate_gate(
    spec: PrivateDatasetSpec,
    budget: BudgetTerms,
    rows: pl.DataFrame,
    public_corpus: pl.DataFrame,
    ledger: Ledger,
    sensitive_store: SensitiveStore,
) -> dict[str, bool]:
    """Decides whether rows may be published; True per check name means it holds."""
    from dpsynth_assets.attacks.overlap import has_verbatim_private_span

    texts = rows["text"].to_list() if "text" in rows.columns else []
    private = sensitive_store.read_internal(spec.name, "source", purpose="release gate")
    return {
        "budget_kept": ledger.spend(spec.name, budget).epsilon <= budget.epsilon,
        "ledger_chain_valid": ledger.verify().ok,
        "corpus_not_empty": any(text.strip() for text in texts),
        "no_canary": not _has_canary(spec, texts),
        "no_verbatim_private_span": not has_verbatim_private_span(
            texts,
            private.records["text"].to_list(),
            public_corpus["text"].to_list(),
            private_units=private.records["unit_id"].to_list(),
        ),
    }


def _has_canary(spec: PrivateDatasetSpec, texts: list[str]) -> bool:
    from dpsynth_assets.attacks.canaries import contains_canary

    return contains_canary(texts, read_canaries(spec))


def read_canaries(spec: PrivateDatasetSpec) -> list[str]:
    """Canaries planted in the private source, one a line; none when none are declared."""
    declared = spec.evaluation.canaries
    if declared is None:
        return []
    path = Path(declared)
    path = path if path.is_absolute() else project_root() / path
    if path.suffix == ".parquet":
        return [str(value) for value in pl.read_parquet(path).to_series(0).to_list()]
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def corpus_checks(
    spec: PrivateDatasetSpec,
    budget: BudgetTerms,
    candidate_key: dg.AssetKey,
    public_corpus_key: dg.AssetKey,
) -> dg.AssetChecksDefinition:
    """Blocking checks of one candidate corpus; each shows pass or fail and nothing else."""

    @dg.multi_asset_check(
        name="__".join([*candidate_key.path, "gate"]),
        specs=[
            dg.AssetCheckSpec(
                name=name,
                asset=candidate_key,
                blocking=True,
                description=text,
                additional_deps=[public_corpus_key],
            )
            for name, text in GATE.items()
        ],
        ins={
            "candidate": dg.AssetIn(candidate_key),
            "public_corpus": dg.AssetIn(public_corpus_key),
        },
    )
    def gate(
        candidate: pl.DataFrame,
        public_corpus: pl.DataFrame,
        ledger: PrivacyLedger,
        sensitive_store: SensitiveStore,
    ) -> Iterator[dg.AssetCheckResult]:
        with private_section(f"The release gate of {spec.name}"):
            outcome = evaluate_gate(
                spec, budget, candidate, public_corpus, ledger.open(), sensitive_store
            )
        for name, passed in outcome.items():
            yield dg.AssetCheckResult(check_name=name, asset_key=candidate_key, passed=passed)

    return gate


def card_check(corpus_key: dg.AssetKey, folder: Path) -> dg.AssetChecksDefinition:
    """Blocking check of one published corpus: label and card say what the ledger says."""

    @dg.asset_check(asset=corpus_key, name="card_equals_ledger", blocking=True)
    def card_equals_ledger(ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """The published label and dataset card equal what the ledger says."""
        from dpsynth_assets.report.card_check import corpus_problems

        problems = corpus_problems(folder, ledger.open().entries())
        return dg.AssetCheckResult(passed=not problems, metadata={"problems": problems})

    return card_equals_ledger
