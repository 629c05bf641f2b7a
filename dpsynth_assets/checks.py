"""The release gate, as a pure decision and as blocking asset checks.

The gate looks at the candidate, at what the dataset file declares and at the ledger, and at no
private record: that a corpus was published, or held back, is post-processing of the candidate,
which the ledger has paid for. Canaries are part of that: they are codes from a declared list, and
given the list the answer follows from the candidate alone.

A dataset file may ask for one check more, which compares the candidate with private text
(`release_gate: {copied_spans: block}`). Its answers are exact and outside (ε, δ), so each is
recorded in the ledger before it has an effect, and the privacy label counts them.

Dagster's blocking checks stop downstream steps of the same run; the publishing step evaluates the
same decision again, so a later run cannot go around it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.metadata import compared
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.paths import project_root
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import BudgetTerms, GateQuestion, Ledger
from dpsynth_assets.privacy.ledger.terms import digest
from dpsynth_assets.releases.sealed import candidate_problem, sealed_release
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.gate_conditions import PAID_FOR, Condition, gate_conditions
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.private_section import private_section, public_section
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import SensitiveStore
from dpsynth_assets.tags import DECIDING_GATE

GATE: dict[str, str] = {
    "budget_kept": "The cohort's cumulative ε in the ledger is within its declared budget.",
    "ledger_chain_valid": "Every ledger entry hashes to what the next entry recorded.",
    PAID_FOR: (
        "The rows are those of the stored release that the ledger sealed, and so is every release "
        "they were made from."
    ),
    "corpus_not_empty": "The corpus has at least one row of text.",
    "no_canary": (
        "No code of the declared list of canaries occurs in the corpus: codes that were hidden in "
        "the private records, so that copying shows. No record is read for it."
    ),
}

NO_COPIED_SPAN = "no_copied_span"
COPIED_SPANS_CODE = "1"
"""Version of the comparison, as a decision's ledger entry names it."""

_DECIDING_TEXT = (
    "No long span that is particular to one or two private units occurs verbatim. The dataset file "
    "lets this check decide, so its answer is an exact statement about private text, outside "
    "(ε, δ): the ledger counts it. Asked only where all other checks hold."
)


@dataclass(frozen=True)
class Candidate:
    """Rows that may be published.

    Attributes:
        rows: The rows, with the column `reservation` that names their release.
        asset: Their asset, parts joined by `/`.
        store: Where their release lies.
    """

    rows: pl.DataFrame
    asset: str
    store: StoredReleases

    @property
    def texts(self) -> list[str]:
        """Its texts; none where it has no column of them."""
        return self.rows["text"].to_list() if "text" in self.rows.columns else []

    def problem(self, account: str, ledger: Ledger) -> str | None:
        """Says why the rows are not what was paid for; None where they are."""
        return candidate_problem(self.rows, self.asset, account, ledger, self.store)


def deciding_checks(spec: PrivateDatasetSpec) -> tuple[str, ...]:
    """Checks that compare with private text and that the dataset file lets decide; mostly none."""
    return (NO_COPIED_SPAN,) if spec.release_gate.copied_spans == "block" else ()


def evaluate_conditions(
    spec: PrivateDatasetSpec, budget: BudgetTerms, candidate: Candidate, ledger: Ledger
) -> dict[str, Condition]:
    """Conditions that read no private record, by the name of their check."""
    return gate_conditions(
        spent=ledger.spend(spec.account, budget).epsilon,
        budget=budget.epsilon,
        chain_problems=ledger.verify().problems,
        not_paid_for=candidate.problem(spec.account, ledger),
        texts=candidate.texts,
        has_canary=_has_canary(spec, candidate.texts),
    )


def evaluate_gate(
    spec: PrivateDatasetSpec,
    budget: BudgetTerms,
    candidate: Candidate,
    public_corpus: pl.DataFrame | None,
    ledger: Ledger,
    sensitive_store: SensitiveStore | None = None,
    *,
    deciding: Sequence[str] = (),
    run_id: str = "",
) -> dict[str, bool]:
    """Decides whether rows may be published; True per check name means it holds.

    Args:
        spec: The dataset.
        budget: Its terms.
        candidate: The rows, their asset, and the store with whose release they are compared.
        public_corpus: Public text, whose spans a deciding check does not count as copied.
        ledger: What was charged, and what was decided before.
        sensitive_store: What a deciding check compares with. Not opened without one; None: only
            what the ledger has recorded counts.
        deciding: Of `deciding_checks`, those to be asked, after all others and if these hold.
        run_id: Who asks.

    Raises:
        PrivacyError: There is no record of a decision, and no store to take it from.

    **Privacy** Without a deciding check a function of the candidate, the declaration and the
    ledger: post-processing. Every answer of a deciding check is exact, outside (ε, δ), and in the
    ledger before this function returns it.
    """
    rows, texts = candidate.rows, candidate.texts
    conditions = evaluate_conditions(spec, budget, candidate, ledger)
    outcome = {name: condition.holds for name, condition in conditions.items()}
    for name in deciding:
        if not all(outcome.values()):
            outcome[name] = False  # Nothing is asked for a candidate that is held back anyway.
            continue
        question = GateQuestion(
            cohort=spec.account,
            check=name,
            candidate=digest(texts),
            release=str(rows["reservation"][0]),
            code_version=COPIED_SPANS_CODE,
            run_id=run_id,
        )
        outcome[name] = _decided(spec, question, texts, public_corpus, ledger, sensitive_store)
    return outcome


def _decided(
    spec: PrivateDatasetSpec,
    question: GateQuestion,
    texts: list[str],
    public_corpus: pl.DataFrame | None,
    ledger: Ledger,
    sensitive_store: SensitiveStore | None,
) -> bool:
    """The ledger's answer about a candidate; asks the gate where there is none yet."""
    if sensitive_store is None or public_corpus is None:
        known = ledger.decision(question)
        if known is None:
            raise PrivacyError(
                f"Expected a decision of the check {question.check} about this candidate in the "
                "ledger, got none. Run the checks of its candidate_corpus first; they take it."
            )
        return known
    return ledger.decide(question, lambda: not _copies(spec, texts, public_corpus, sensitive_store))


def _copies(
    spec: PrivateDatasetSpec,
    texts: list[str],
    public_corpus: pl.DataFrame,
    sensitive_store: SensitiveStore,
) -> bool:
    from dpsynth_assets.attacks.overlap import has_verbatim_private_span
    from dpsynth_assets.resources.scored_source import ScoredSource

    private = sensitive_store.counted_internal(spec.name, purpose="release gate")
    holders = ScoredSource(private=private, by_unit=True).span_holders
    return has_verbatim_private_span(texts, holders, public_corpus["text"].to_list())


def _has_canary(spec: PrivateDatasetSpec, texts: list[str]) -> bool:
    from dpsynth_assets.attacks.canaries import contains_canary

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


def corpus_checks(
    spec: PrivateDatasetSpec,
    budget: BudgetTerms,
    candidate_key: dg.AssetKey,
    public_corpus_key: dg.AssetKey,
) -> list[dg.AssetChecksDefinition]:
    """Blocking checks of one candidate corpus.

    Those that read no private record show what they expect beside what they found; one that
    compares with private text shows pass or fail and nothing else.
    """
    asked = deciding_checks(spec)
    deciding = [_deciding_gate(spec, budget, candidate_key, public_corpus_key)] if asked else []
    return [_gate(spec, budget, candidate_key), *deciding]


def _gate(
    spec: PrivateDatasetSpec, budget: BudgetTerms, candidate_key: dg.AssetKey
) -> dg.AssetChecksDefinition:
    asset = "/".join(candidate_key.path)

    @dg.multi_asset_check(
        name="__".join([*candidate_key.path, "gate"]),
        specs=[
            dg.AssetCheckSpec(name=name, asset=candidate_key, blocking=True, description=text)
            for name, text in GATE.items()
        ],
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
                check_name=name,
                passed=condition.holds,
                metadata=condition.shown(),
            )

    return gate


def _deciding_gate(
    spec: PrivateDatasetSpec,
    budget: BudgetTerms,
    candidate_key: dg.AssetKey,
    public_corpus_key: dg.AssetKey,
) -> dg.AssetChecksDefinition:
    """The checks that read private text, as the dataset file asks for it: a step of their own."""
    asked = deciding_checks(spec)

    @dg.multi_asset_check(
        name="__".join([*candidate_key.path, "deciding_gate"]),
        specs=[
            dg.AssetCheckSpec(
                name=name,
                asset=candidate_key,
                blocking=True,
                description=_DECIDING_TEXT,
                additional_deps=[public_corpus_key],
                metadata={DECIDING_GATE: "release_gate.copied_spans"},
            )
            for name in asked
        ],
        ins={
            "candidate": dg.AssetIn(candidate_key),
            "public_corpus": dg.AssetIn(public_corpus_key),
        },
    )
    def deciding_gate(
        context: dg.AssetCheckExecutionContext,
        candidate: pl.DataFrame,
        public_corpus: pl.DataFrame,
        ledger: PrivacyLedger,
        release_store: ReleaseStore,
        sensitive_store: SensitiveStore,
    ) -> Iterator[dg.AssetCheckResult]:
        with private_section(f"The release gate of {spec.name}"):
            outcome = evaluate_gate(
                spec,
                budget,
                Candidate(candidate, "/".join(candidate_key.path), release_store),
                public_corpus,
                ledger.open(),
                sensitive_store,
                deciding=asked,
                run_id=context.op_execution_context.run_id,
            )
        for name in asked:
            yield dg.AssetCheckResult(check_name=name, passed=outcome[name])

    return deciding_gate


def card_check(
    corpus_key: dg.AssetKey, folder: Path, published: Callable[[pl.DataFrame], pl.DataFrame]
) -> dg.AssetChecksDefinition:
    """Blocking check of one published corpus: rows, label and card are what the ledger sealed.

    Args:
        corpus_key: The corpus.
        folder: Its folder.
        published: Makes published rows of the rows of a release.
    """

    @dg.asset_check(asset=corpus_key, name="card_equals_ledger", blocking=True)
    @public_section(f"The card of {'/'.join(corpus_key.path)}")
    def card_equals_ledger(
        ledger: PrivacyLedger, release_store: ReleaseStore
    ) -> dg.AssetCheckResult:
        """Published rows, label and dataset card equal what the ledger has sealed."""
        from dpsynth_assets.report.card_check import corpus_problems, rows_problem

        book, asset = ledger.open(), "/".join([*corpus_key.path[:-1], CANDIDATE_CORPUS])
        problems = corpus_problems(folder, book.entries())

        def expected(reservation: str) -> pl.DataFrame | None:
            rows = sealed_release(book, release_store, reservation, asset)[1]
            return None if rows is None else published(rows)

        problems += [] if problems else rows_problem(folder, expected)
        return dg.AssetCheckResult(
            passed=not problems,
            metadata=compared("rows, label and card as the ledger sealed them", problems),
        )

    return card_equals_ledger
