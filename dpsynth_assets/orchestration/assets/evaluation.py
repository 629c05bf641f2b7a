"""The evaluation stage: references, scores and the internal report.

Scores are computed from private held-out text without noise, so everything here is internal: it is
for the steward's eyes, and nothing may depend on it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.planning import SPARE, examples_shown, reference_settings
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.methods.work import LANGUAGE_MODEL, TEXT_EMBEDDER
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.kept_scores import (
    CEILING,
    ceiling_is_kept,
    keep_ceiling,
    kept_floor,
    reference_version,
    version_with_records,
)
from dpsynth_assets.orchestration.assets.keys import (
    EVALUATION,
    REFERENCES,
    cohort_asset,
    dataset_key,
    public_ins,
    shared_key,
)
from dpsynth_assets.orchestration.assets.scoring import (
    CorpusToScore,
    internal_facts,
    model_keys,
    score_corpora,
    score_models,
    write_report,
)
from dpsynth_assets.orchestration.metadata import check_specs
from dpsynth_assets.orchestration.resources.model_pool import model_step
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.stores import (
    Models,
    PrivacyLedger,
    ReleaseStore,
    SensitiveStore,
)
from dpsynth_assets.report.cards import read_released, released_label, released_rows_path
from dpsynth_assets.sensitive.scored_source import ScoredSource
from dpsynth_assets.tags import INTERNAL, PUBLIC

_REFERENCES_CODE = "dpsynth_assets.methods.private_prediction.references"
PUBLIC_ONLY = "public_only_corpus"


def evaluation_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Floor, ceiling and report of one dataset."""
    assets = [_evaluation_report(spec, plan)]
    if spec.evaluation.references:
        assets += [_public_only_corpus(spec, plan), _non_private_corpus(spec, plan)]
    return dg.Definitions(assets=assets)


def _reference(
    spec: PrivateDatasetSpec, artifact: str, level: str, kind: str, code: str
) -> dict[str, Any]:
    """What both reference corpora have; they are a function of these fields of the file."""
    return {
        **cohort_asset(spec, REFERENCES, artifact, level, f"{_REFERENCES_CODE}.{code}"),
        "ins": public_ins(spec.public_data, "public_language_model"),
        "kinds": {"pytorch", "polars"},
        **model_step(spec.public_data, LANGUAGE_MODEL),
        "code_version": version_of(
            kind,
            SPARE,
            spec.public_facts,
            spec.methods,
            spec.evaluation,
            spec.prompt,
            spec.structured,
        ),
    }


def _version(
    spec: PrivateDatasetSpec, plan: DatasetPlan, manifest: dict[str, Any], models: Models, kind: str
) -> str:
    """Digest of what a reference is a function of, the private records aside.

    The references take settings from the methods, whose defaults may be those of a plugin.
    """
    from dpsynth_assets.attacks.circumstances import code_behind

    writers = [code_behind(type(each.method)) for each in plan.methods]
    written = (reference_settings(plan), examples_shown(plan), writers)
    return reference_version(spec, manifest, models, kind, SPARE, *written)


def _public_only_corpus(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    @dg.asset(
        **_reference(spec, PUBLIC_ONLY, PUBLIC, "public only", "generate_public_only"),
        description="The floor, ε = 0: text of the public model for each label, no private data.",
    )
    @public_section(f"{spec.name}/{REFERENCES}/{PUBLIC_ONLY}")
    def public_only_corpus(
        context: dg.AssetExecutionContext,
        public_language_model: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[pl.DataFrame]:
        from dpsynth_assets.methods.private_prediction.references import generate_public_only

        report = progress.start(context, f"{spec.name}: public-only reference (ε = 0)")

        def write() -> pl.DataFrame:
            model = prompted(models.language_model(public_language_model), plan.terms.prompts)
            settings, public = reference_settings(plan), PublicInputs(language_model=model)
            corpus = generate_public_only(settings, plan.terms, public, _documents(spec), report)
            return corpus.rows.head(spec.evaluation.reference_rows)

        version = _version(spec, plan, public_language_model, models, "public only")
        rows = kept_floor(spec.name, version, write)
        return dg.Output(rows, metadata={"dagster/row_count": rows.height})

    return public_only_corpus


def _documents(spec: PrivateDatasetSpec) -> int:
    """Documents a reference samples: a few may be blank, and as many rows as asked are to stay."""
    return math.ceil(SPARE * spec.evaluation.reference_rows)


def _non_private_corpus(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    @dg.asset(
        **_reference(spec, CEILING, INTERNAL, "non-private", "generate_non_private"),
        deps=[shared_key(spec.name, "private_records")],
        description=(
            f"The ceiling, ε = ∞: the same model with {examples_shown(plan)} of the real records "
            "in its prompt, the largest number of examples that a method shows. It copies "
            "private text, stays in the owner-only store, and no release depends on it."
        ),
    )
    @private_section(f"{spec.name}/{REFERENCES}/{CEILING}")
    def non_private_corpus(
        context: dg.AssetExecutionContext,
        public_language_model: dict,
        models: Models,
        sensitive_store: SensitiveStore,
        progress: Progress,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.methods.private_prediction.references import generate_non_private

        made: dg.MaterializeResult[Any] = dg.MaterializeResult(
            metadata={"dpsynth/guarantee": "none"}
        )
        private = sensitive_store.read_internal(spec.name, "source")
        version = _version(spec, plan, public_language_model, models, "non-private")
        version = version_with_records(version, private.records)
        if ceiling_is_kept(sensitive_store, spec.name, version):
            return made
        with public_section("Opening the public language model"):
            model = prompted(models.language_model(public_language_model), plan.terms.prompts)
        corpus: SyntheticCorpus = generate_non_private(
            reference_settings(plan),
            plan.terms,
            private,
            PublicInputs(language_model=model),
            _documents(spec),
            progress.start(context, f"{spec.name}: non-private reference (ε = ∞)"),
            examples_shown(plan),
        ).value
        rows = corpus.rows.head(spec.evaluation.reference_rows)
        keep_ceiling(sensitive_store, spec.name, version, rows)
        return made

    return non_private_corpus


def _read_by_report(
    spec: PrivateDatasetSpec, plan: DatasetPlan
) -> tuple[dict[str, dg.AssetIn], list[dg.AssetKey]]:
    """Values that the report is given, and assets that come before it."""
    ins = public_ins(spec.public_data, "public_corpus", *_models_of_scores(spec))
    deps = [
        shared_key(spec.name, "private_records"),
        shared_key(spec.name, "private_embeddings"),
        *(dataset_key(spec.name, planned.folder, "corpus") for planned in plan.corpora),
        *model_keys(spec, plan),
    ]
    if spec.evaluation.references:
        ins[PUBLIC_ONLY] = dg.AssetIn(dataset_key(spec.name, REFERENCES, PUBLIC_ONLY))
        deps.append(dataset_key(spec.name, REFERENCES, CEILING))
    return ins, deps


def _models_of_scores(spec: PrivateDatasetSpec) -> list[str]:
    """Models of the base that scores are computed with."""
    return [TEXT_EMBEDDER, *([LANGUAGE_MODEL] if spec.evaluation.reads_rows else [])]


def _evaluation_report(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    ins, deps = _read_by_report(spec, plan)
    code = "dpsynth_assets.metrics.evaluation.Evaluation"

    @dg.asset(
        **cohort_asset(spec, EVALUATION, "evaluation_report", INTERNAL, code),
        ins=ins,
        deps=deps,
        kinds={"scikitlearn", "html"},
        **model_step(spec.public_data, *_models_of_scores(spec)),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("evaluation", spec.evaluation),
        description=(
            "MAUVE, downstream accuracy, lengths, diversity, overlap and canaries of every "
            "corpus, next to real data, the public-only floor and the non-private ceiling; also "
            "of privately trained models that have no corpus. Internal."
        ),
    )
    @private_section(f"{spec.name}/evaluation/evaluation_report")
    def evaluation_report(
        context: dg.AssetExecutionContext,
        text_embedder: dict,
        public_corpus: pl.DataFrame,
        ledger: PrivacyLedger,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
        models: Models,
        progress: Progress,
        **others: Any,
    ) -> dg.MaterializeResult:
        judge = others.pop(LANGUAGE_MODEL, None)
        report, texts = progress.start(context, f"{spec.name}: evaluation"), public_corpus["text"]
        corpora, store = list(_corpora(spec, plan, others, sensitive_store)), sensitive_store
        scored = score_corpora(
            spec, corpora, text_embedder, models, store, texts.to_list(), report, judge
        )
        book = ledger.open()
        trained = score_models(spec, plan, book, release_store, store)
        drawn = _of_methods(spec.name, corpora, sensitive_store, release_store)
        written = write_report(
            spec, plan, scored, book, text_embedder["name"], corpora, trained, of_methods=drawn
        )
        return dg.MaterializeResult(metadata=written)

    return evaluation_report


def _of_methods(
    dataset: str, corpora: Sequence[CorpusToScore], store: SensitiveStore, releases: ReleaseStore
) -> dict[str, bytes]:
    """What the median's tokens cost, which is private; the share of private tokens, released."""
    from dpsynth_assets.report.plots import internal_pictures, released_pictures

    own = [each.name for each in corpora if each.role == "corpus"]
    costs = {folder: internal_facts(store, dataset, folder) for folder in own}
    released = {folder: _released_facts(dataset, folder, releases) for folder in own}
    return internal_pictures(costs) | released_pictures(released)


def _released_facts(dataset: str, folder: str, store: ReleaseStore) -> dict[str, Any]:
    """Facts of the release behind a published corpus; none where the store was cleared."""
    reservation = released_label(dataset, folder)["subject"]["reservation"]
    return store.load(reservation)[0] if store.has(reservation) else {}


def _corpora(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    references: dict[str, pl.DataFrame],
    store: SensitiveStore,
) -> Iterator[CorpusToScore]:
    """Every corpus to score: references first, then the published ones."""
    if PUBLIC_ONLY in references:
        rows = references[PUBLIC_ONLY]
        told: dict[str, Any] = {"guarantee": "dp", "epsilon": 0.0, "delta": 0.0}
        yield CorpusToScore("public only", rows, "floor", told)
        rows = store.read_internal_table(spec.name, CEILING)
        told = {"guarantee": "none", "epsilon": "∞"}
        yield CorpusToScore("non-private", rows, "ceiling", told)
    for planned in plan.corpora:
        if released_rows_path(spec.name, planned.folder).exists():
            yield _published(spec, planned, store)


def _published(
    spec: PrivateDatasetSpec, planned: PlannedMethod, store: SensitiveStore
) -> CorpusToScore:
    stated = released_label(spec.name, planned.folder)["guarantee"]
    internal = internal_facts(store, spec.name, planned.folder)
    told: dict[str, Any] = {"guarantee": str(planned.plan.guarantee)}
    told |= {name: stated.get(name) for name in ("epsilon", "delta")}
    told |= {name: internal[name] for name in ("seconds", "ex_post_epsilon") if name in internal}
    rows = read_released(spec.name, planned.folder).with_columns(_composite_label(spec))
    return CorpusToScore(planned.folder, rows, "corpus", told)


def _composite_label(spec: PrivateDatasetSpec) -> pl.Expr:
    from dpsynth_assets.datasets import LABEL_SEPARATOR

    columns = spec.columns.labels
    if not columns:
        return pl.lit("").alias("label")
    return pl.concat_str(columns, separator=LABEL_SEPARATOR).alias("label")


# Spans that a candidate shares with private records, shown to the steward only.
#
# The comparison reads private text without noise, so its answer may not decide about a release:
# that would tell exactly what the records do not contain. It is internal, holds nothing back, and
# nothing depends on it.


COPIED_SPANS = "copied_spans"
NO_COPIED_SPAN = "no_copied_span"
_NO_COPIED_SPAN = (
    "The corpus repeats no long span that only one or two private units have. Internal: the "
    "check warns the steward and blocks nothing."
)
COPIED_SPANS_CODE = "1"
"""Version of the comparison."""


def spans_table(folder: str) -> str:
    """Name of the table in the sensitive store: `row` of the candidate and the copied `words`."""
    return f"{folder}_{COPIED_SPANS}"


def copied_spans_asset(spec: PrivateDatasetSpec, planned: PlannedMethod) -> dg.AssetsDefinition:
    """What one candidate copies, with a check that warns and blocks nothing."""
    key = dataset_key(spec.name, planned.folder, COPIED_SPANS)
    candidate = dataset_key(spec.name, planned.folder, "candidate_corpus")

    @dg.asset(
        **cohort_asset(
            spec,
            planned.folder,
            COPIED_SPANS,
            INTERNAL,
            "dpsynth_assets.attacks.overlap.copied_spans",
            box=planned.folder,
        ),
        deps=[shared_key(spec.name, "private_records")],
        ins={
            "candidate_corpus": dg.AssetIn(candidate),
            **public_ins(spec.public_data, "public_corpus"),
        },
        kinds={"polars"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of(COPIED_SPANS, COPIED_SPANS_CODE),
        check_specs=check_specs(key, {NO_COPIED_SPAN: _NO_COPIED_SPAN}),
        description=(
            "Spans of twelve words or more that the candidate shares with one or two private "
            "units, in the owner-only store. Internal: blocking a corpus because of them would "
            "reveal an exact fact about the records, which no ε covers."
        ),
    )
    @private_section("/".join(key.path))
    def copied_spans(
        candidate_corpus: pl.DataFrame, public_corpus: pl.DataFrame, sensitive_store: SensitiveStore
    ) -> dg.MaterializeResult:
        table = _compare(spec.name, candidate_corpus, public_corpus, sensitive_store)
        place = sensitive_store.write_internal_table(spec.name, spans_table(planned.folder), table)
        return dg.MaterializeResult(
            metadata={
                "dpsynth/spans": dg.MetadataValue.path(str(place)),
                "dpsynth/rows_with_copied_spans": table["row"].n_unique(),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name=NO_COPIED_SPAN,
                    passed=table.is_empty(),
                    severity=dg.AssetCheckSeverity.WARN,
                )
            ],
        )

    return copied_spans


def _compare(
    dataset: str, candidate: pl.DataFrame, public_corpus: pl.DataFrame, store: SensitiveStore
) -> pl.DataFrame:
    """Every copied span as a row; **Privacy** it quotes private records."""
    from dpsynth_assets.attacks.overlap import copied_spans

    found = copied_spans(
        candidate["text"].to_list() if "text" in candidate.columns else [],
        ScoredSource(store=store, dataset=dataset, by_unit=True),
        public_corpus["text"].to_list(),
    )
    rows = [{"row": span.row, "words": " ".join(span.words)} for span in found]
    return pl.DataFrame(rows, schema={"row": pl.Int64, "words": pl.String})
