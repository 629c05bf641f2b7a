"""Scoring corpora and writing the internal report: files and plots."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import dagster as dg
import polars as pl

from dpsynth_assets.attacks.circumstances import files_behind
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import version_of, version_of_texts
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.metrics.comparison import Compared, gap_fields, interval_rule
from dpsynth_assets.metrics.downstream import downstream_model_scores
from dpsynth_assets.metrics.embedding_distances import (
    MINIMUM_ROWS,
    NOT_COMPUTED,
    MauveSettings,
    mauve_is_installed,
)
from dpsynth_assets.metrics.evaluation import (
    REAL_DATA,
    CorpusScores,
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import ScoredSide
from dpsynth_assets.metrics.registry import pictured
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.orchestration.assets.kept_scores import KeptScores, scores_version
from dpsynth_assets.orchestration.assets.keys import dataset_key
from dpsynth_assets.orchestration.checks import read_canaries
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import ReleaseStore, SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets.releases.store import last_charge
from dpsynth_assets.report import plots
from dpsynth_assets.report.pages import page_address
from dpsynth_assets.report.render import render_report
from dpsynth_assets.sensitive.scored_source import ScoredSource, sampled_source


@dataclass(frozen=True)
class CorpusToScore:
    """One corpus with what is known of its guarantee.

    Attributes:
        role: `floor` and `ceiling` span the gap that a private corpus can close.
        told: Fields of its row in the report: `guarantee`, `epsilon`, `delta`, the `seconds` that
            it took, if known, and the `ex_post_epsilon` of such a release, which is internal.
    """

    name: str
    rows: pl.DataFrame = field(repr=False)
    role: Literal["floor", "ceiling", "corpus"]
    told: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores of one corpus; `corpus` is None for the row of real data."""

    corpus: CorpusToScore | None
    scores: CorpusScores


def internal_facts(store: SensitiveStore, dataset: str, folder: str) -> dict[str, Any]:
    """Un-noised facts that a method left for the steward; empty if there are none."""
    return json.loads(store.read_internal_text(dataset, f"{folder}_internal.json") or "{}")


def score_corpora(
    spec: PrivateDatasetSpec,
    corpora: Sequence[CorpusToScore],
    manifest: Mapping[str, Any],
    models: OpenedModels,
    store: SensitiveStore,
    public_texts: Sequence[str],
    progress: ProgressCallback,
    language_model: Mapping[str, Any] | None = None,
) -> list[Scored]:
    """Scores real data and every corpus; scores that were kept and still hold are read back.

    Args:
        spec: The dataset.
        corpora: What is scored.
        manifest: The text embedder that the private embeddings were made with.
        models: Opens it, where a corpus has to be embedded.
        store: Holds records, their embeddings and kept scores.
        public_texts: Documents whose spans are no leak.
        progress: Called with the share done in [0, 1] and a public message.
        language_model: The public language model, where it reads rows.
    """
    settings = evaluation_settings(spec, corpora)
    reference = _private_reference(spec, store, settings.max_rows)
    version = scores_version(settings, reference, list(public_texts), manifest, models)
    version = version_of(version, language_model and [language_model, files_behind(language_model)])
    kept = KeptScores(store, spec.name)

    @cache
    def embedder() -> TextEmbedder:
        with public_section("Opening the text embedder"):
            return models.text_embedder(dict(manifest))

    @cache
    def evaluation() -> Evaluation:
        judge = None
        if language_model is not None:
            with public_section("Opening the public language model"):
                judge = models.language_model(language_model)
        return Evaluation(
            reference=reference, public_texts=public_texts, settings=settings, language_model=judge
        )

    def scores_of(corpus: CorpusToScore) -> CorpusScores:
        most = min(settings.max_rows, corpus.rows.height)
        rows = corpus.rows.sample(most, seed=settings.seed, shuffle=True)
        texts, labels = rows["text"].to_list(), rows["label"].to_list()

        def compute() -> CorpusScores:
            features = embedder().embed(texts, public=True)
            return evaluation().scores(ScoredSide.of(rows, features, name=corpus.name))

        return kept.scores(
            version_of(version, corpus.name, version_of_texts(texts), labels), compute
        )

    progress(0.0, f"scoring {REAL_DATA}")
    real = kept.scores(version_of(version, REAL_DATA), lambda: evaluation().real_scores())
    scored = [Scored(corpus=None, scores=real)]
    for number, corpus in enumerate(corpora, start=1):
        progress(number / (len(corpora) + 1), f"scoring {corpus.name}")
        scored.append(Scored(corpus=corpus, scores=scores_of(corpus)))
    kept.drop_others()
    without = "" if mauve_is_installed() else f"; MAUVE: {NOT_COMPUTED}"
    progress(1.0, f"{len(corpora)} corpora scored{without}")
    return scored


def evaluation_settings(
    spec: PrivateDatasetSpec, corpora: Sequence[CorpusToScore]
) -> EvaluationSettings:
    """Constants of the evaluation; every corpus is scored on as many rows as the smallest has.

    MAUVE, accuracy and diversity change with the number of rows, so corpora of different sizes do
    not compare. The number comes from public facts: what the dataset file asks for, and how many
    rows were released. A corpus of no rows has no scores, and takes none from the others.
    """
    return EvaluationSettings(
        max_rows=min(asked for _, asked in _asked_rows(spec, corpora)),
        mauve=MauveSettings(**dict(spec.evaluation.mauve)),
        record_schema=spec.structured.schema_mapping if spec.structured else None,
        next_word=spec.evaluation.next_word_settings if spec.evaluation.next_word else None,
        next_word_larger=spec.evaluation.next_word_larger,
        encoder=spec.evaluation.encoder,
        judged=spec.evaluation.judged,
        in_context=spec.evaluation.in_context,
    )


def _asked_rows(
    spec: PrivateDatasetSpec, corpora: Sequence[CorpusToScore]
) -> Iterator[tuple[str, int]]:
    """Who asks for how many rows; of the ceiling, which is private, what the file asks for."""
    yield "evaluation.rows", spec.evaluation.rows
    for corpus in corpora:
        rows = spec.evaluation.reference_rows if corpus.role == "ceiling" else corpus.rows.height
        if rows > 0:
            yield corpus.name, rows


def compared_rows_sentence(spec: PrivateDatasetSpec, corpora: Sequence[CorpusToScore]) -> str:
    """Says on how many rows all corpora are scored, and what sets the number."""
    name, rows = min(_asked_rows(spec, corpora), key=lambda asked: asked[1])
    mauve = f"MAUVE needs at least {MINIMUM_ROWS} rows and {MINIMUM_ROWS} held-out records"
    return f"Every corpus is scored on {rows} rows, the smallest number, that of {name}; {mauve}."


def _private_reference(
    spec: PrivateDatasetSpec, store: SensitiveStore, rows: int
) -> PrivateReference:
    """Reads held-out records, and a sample of as many source records as are compared.

    Copies are looked for in all source records, of which one shard is held at a time.
    """
    sample = sampled_source(store.each_for_scoring(spec.name, "source"), spec.name, rows)
    held_out = store.read_internal(spec.name, "held_out", with_embeddings=True)
    return PrivateReference(
        source=ScoredSide.of(sample.records, sample.embeddings),
        held_out=ScoredSide.of(held_out.records, held_out.vectors),
        canaries=read_canaries(spec),
        everywhere=ScoredSource(store=store, dataset=spec.name, with_embeddings=True),
        source_label_count=sample.labels,
        source_version=sample.version,
    )


def write_report(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    scored: Sequence[Scored],
    ledger: Ledger,
    embedder_name: str,
    corpora: Sequence[CorpusToScore],
    models: Sequence[Mapping[str, Any]] = (),
    *,
    of_methods: Mapping[str, bytes] | None = None,
) -> dict[str, Any]:
    """Writes report and metrics into the owner-only reports folder; returns asset metadata.

    `of_methods`, pictures of what methods did, may be private: they stand in the report alone.
    """
    table = report_table(scored, models)
    shown = _pictures(table, scored)
    pictures = shown | dict(of_methods or {})
    context = _context(spec, plan, ledger, embedder_name)
    context["evaluation"] = evaluation_settings(spec, corpora).to_json()
    told = [*_verdicts(scored), compared_rows_sentence(spec, corpora)]
    samples = {
        corpus.name: list(corpus.rows.select("label", "text").iter_rows())
        for corpus in corpora
        if corpus.role != "ceiling"  # The ceiling copies private text.
    }
    report = render_report(table, context, pictures, samples, told)
    folder = home().reports / spec.name
    metrics = {"table": table, "verdicts": told, "context": context}
    write_whole(folder / "report.html", report.html)
    write_whole(folder / "report.md", report.markdown)
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=2))
    return score_metadata(spec.name, folder / "report.html", table, told, shown)


def report_table(
    scored: Sequence[Scored], models: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """One row a corpus, the real data first; gap shares against floor and ceiling; then models."""
    ends = _ends(scored)
    rows = []
    for entry in scored:
        row = {**entry.scores.to_json(), "scored_rows": entry.scores.rows, **_told(entry.corpus)}
        if row["role"] == "corpus" and len(ends) == 2:
            estimates = (ends[role].scores.estimates for role in ("floor", "ceiling"))
            row |= gap_fields(entry.scores.estimates, *estimates)
        rows.append(row)
    return rows + [dict(model) for model in models]


def _told(corpus: CorpusToScore | None) -> dict[str, Any]:
    """What is known of a corpus beside its scores; None: of real data, whose rows are private."""
    told = {"delta": None, "seconds": None}
    if corpus is None:
        return told | {"role": "real data", "guarantee": "real data", "epsilon": "∞", "rows": None}
    return told | {"role": corpus.role, "rows": corpus.rows.height, **corpus.told}


def _ends(scored: Sequence[Scored]) -> dict[str, Scored]:
    """Floor and ceiling by their role, where they were scored."""
    return {s.corpus.role: s for s in scored if s.corpus and s.corpus.role != "corpus"}


def _verdicts(scored: Sequence[Scored]) -> list[str]:
    """Which corpora differ, references included; real data is no corpus."""
    corpora = {s.corpus.name: s.scores.estimates for s in scored if s.corpus}
    names = {role: end.scores.name for role, end in _ends(scored).items()}
    private = [name for name in corpora if name not in names.values()]
    table = Compared(corpora, **names)
    told = [*table.told_of_private(private), *table.verdicts()]
    return [*told, interval_rule("rows")] if told else []


def _pictures(table: list[dict[str, Any]], scored: Sequence[Scored]) -> dict[str, bytes]:
    ends = {role: end.scores.values for role, end in _ends(scored).items()}
    pictures = {
        metric: plots.scores_plot(
            table, metric, *(ends.get(role, {}).get(metric) for role in ("floor", "ceiling"))
        )
        for metric in pictured()
        if any(row.get(metric) is not None for row in table)
    }
    lengths = {
        s.corpus.name: [len(t.split()) for t in s.corpus.rows["text"]] for s in scored if s.corpus
    }
    pictures["lengths"] = plots.cumulative_plot(lengths, "words per text", "texts")
    return pictures


def _context(
    spec: PrivateDatasetSpec, plan: DatasetPlan, ledger: Ledger, embedder_name: str
) -> dict[str, Any]:
    spend = ledger.spend(spec.account, plan.budget)
    return {
        "cohort": spec.name,
        "privacy_unit": spec.unit.describe(),
        "neighboring_relation": str(spec.neighboring_relation),
        "budget_epsilon": spec.budget.epsilon,
        "delta": spend.delta,
        "guaranteed_epsilon": float(spend.guaranteed_epsilon),
        "cumulative_epsilon": float(spend.epsilon),
        "cohort_guarantee": spend.total_guarantee,
        "embedder": embedder_name,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


# Scores of the internal report as metadata of its asset.
#
# **Privacy** Internal, as the report: scores are computed from private records without noise.


def score_metadata(
    cohort: str,
    report: Path,
    table: Sequence[Mapping[str, Any]],
    told: Sequence[str],
    pictures: Mapping[str, bytes],
) -> dict[str, Any]:
    """Puts scores where Dagster shows them.

    Args:
        cohort: Whose scores they are.
        report: The written page.
        table: Rows of the report's table.
        told: Sentences below it.
        pictures: Those that may be shown beside the asset.
    """
    metadata: dict[str, Any] = {
        "dpsynth/report": dg.MetadataValue.url(page_address("reports", cohort, report.name)),
        "dpsynth/verdicts": dg.MetadataValue.md("\n\n".join(told)),
    }
    for name, picture in pictures.items():
        metadata[f"dpsynth/plot_{name}"] = dg.MetadataValue.md(plots.to_markdown(picture, name))
    for row in table:
        slug = row["name"].replace(" ", "_").replace("-", "_")
        for metric in pictured():
            if row[metric] is not None:
                metadata[f"dpsynth/{metric}/{slug}"] = float(row[metric])
    return metadata


# Downstream models that were trained privately, without a corpus, scored beside the corpora.
#
# **Privacy** Real held-out records are read without noise: the scores are internal, as all of the
# evaluation. The models themselves are released; scoring one costs nothing.


def model_keys(spec: PrivateDatasetSpec, plan: DatasetPlan) -> list[dg.AssetKey]:
    """Assets of the models that are scored."""
    return [dataset_key(spec.name, p.folder, stage) for p, stage in _models(plan)]


def score_models(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    ledger: Ledger,
    releases: ReleaseStore,
    store: SensitiveStore,
) -> list[dict[str, Any]]:
    """Tests the latest release of every downstream model on held-out records.

    A model that was not released yet is left out, as a corpus is.

    Returns:
        A row of the report's table for each: ε of its own charge, and its scores, which are
        internal. There are no rows of text to score.
    """
    rows = []
    for planned, stage in _models(plan):
        entry = last_charge(ledger, f"{spec.name}/{planned.folder}/{stage}", spec.account)
        if entry is None:
            continue
        private = store.read_internal(spec.name, "held_out", with_embeddings=True)
        held_out = ScoredSide.of(private.records, private.vectors)
        files, event, terms = releases.files(entry.reservation), entry.event, plan.terms
        rows.append(
            {
                "name": f"{planned.folder} model",
                "role": "model",
                "guarantee": entry.guarantee,
                "epsilon": event and epsilon_of([event], terms.delta, terms.accountant),
                "delta": terms.delta,
                **dict.fromkeys(("rows", "seconds", *pictured())),
                **downstream_model_scores(files, held_out),
            }
        )
    return rows


def _models(plan: DatasetPlan) -> Iterator[tuple[PlannedMethod, str]]:
    """Methods that write no corpus, each with the stage that releases its model: the last one."""
    for planned in plan.methods:
        if not planned.writes_corpus:
            yield planned, planned.plan.stages[-1].name
