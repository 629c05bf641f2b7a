"""The evaluation stage: references, scores and the internal report.

Scores are computed from private held-out text without noise, so everything here is internal: it is
for the steward's eyes, and nothing may depend on it.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.models_run import LANGUAGE_MODEL, TEXT_EMBEDDER
from dpsynth_assets.methods.planning import (
    SPARE,
    examples_shown,
    reference_settings,
)
from dpsynth_assets.methods.stages import SHARED, SyntheticCorpus
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.corpora import public_corpus_key
from dpsynth_assets.orchestration.assets.downstream_scoring import model_keys, score_models
from dpsynth_assets.orchestration.assets.groups import level_group
from dpsynth_assets.orchestration.assets.kept_references import (
    ceiling_is_kept,
    keep_ceiling,
    kept_floor,
    reference_version,
    version_with_records,
)
from dpsynth_assets.orchestration.assets.keys import (
    EVALUATION,
    PREDICTION_COSTS,
    REFERENCES,
    dataset_key,
    public_key,
)
from dpsynth_assets.orchestration.assets.model_steps import model_step
from dpsynth_assets.orchestration.assets.published import read_released, released_rows_path
from dpsynth_assets.orchestration.assets.scoring import (
    CorpusToScore,
    Scored,
    internal_facts,
    score_corpora,
    write_report,
)
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.private_section import private_section, public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.tags import INTERNAL, PRIVACY, PUBLIC

_REFERENCES_CODE = "dpsynth_assets.methods.private_prediction.references"


def evaluation_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Floor, ceiling and report of one dataset."""
    assets = [_evaluation_report(spec, plan)]
    if spec.evaluation.references:
        assets += [_public_only_corpus(spec, plan), _non_private_corpus(spec, plan)]
    return dg.Definitions(assets=assets)


def _common(
    spec: PrivateDatasetSpec, path: tuple[str, str], level: str, code: str
) -> dict[str, Any]:
    return {
        "key": dataset_key(spec.name, *path),
        "group_name": level_group(spec.name, level),
        "owners": spec.owners,
        "tags": {PRIVACY: level},
        "metadata": code_references(code),
    }


def _model_input(spec: PrivateDatasetSpec) -> dict[str, dg.AssetIn]:
    return {
        "public_language_model": dg.AssetIn(public_key(spec.public_data, "public_language_model"))
    }


def _writer(plan: DatasetPlan) -> tuple[Any, ...]:
    """What the references take from the methods, whose defaults may be those of a plugin."""
    from dpsynth_assets.attacks.circumstances import code_behind

    kinds = [type(each.method) for each in plan.methods]
    return reference_settings(plan), examples_shown(plan), [code_behind(kind) for kind in kinds]


def _public_only_corpus(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    @dg.asset(
        **_common(
            spec,
            (REFERENCES, "public_only_corpus"),
            PUBLIC,
            f"{_REFERENCES_CODE}.generate_public_only",
        ),
        ins=_model_input(spec),
        kinds={"pytorch", "polars"},
        **model_step(spec.public_data, LANGUAGE_MODEL),
        code_version=version_of("public only", SPARE, *_written_by(spec)),
        description="The floor, ε = 0: the public model asked for each label, no private data.",
    )
    @public_section(f"{spec.name}/references/public_only_corpus")
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

        version = reference_version(
            spec, public_language_model, models, "public only", SPARE, *_writer(plan)
        )
        rows = kept_floor(spec.name, version, write)
        return dg.Output(rows, metadata={"dagster/row_count": rows.height})

    return public_only_corpus


def _documents(spec: PrivateDatasetSpec) -> int:
    """Documents a reference samples: a few may be blank, and as many rows as asked are to stay."""
    return math.ceil(SPARE * spec.evaluation.reference_rows)


def _written_by(spec: PrivateDatasetSpec) -> tuple[Any, ...]:
    """What a reference corpus is a function of, in the dataset file."""
    return spec.public_facts, spec.methods, spec.evaluation, spec.prompt, spec.structured


def _non_private_corpus(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    @dg.asset(
        **_common(
            spec,
            (REFERENCES, "non_private_corpus"),
            INTERNAL,
            f"{_REFERENCES_CODE}.generate_non_private",
        ),
        deps=[dataset_key(spec.name, SHARED, "private_records")],
        ins=_model_input(spec),
        kinds={"pytorch", "polars"},
        **model_step(spec.public_data, LANGUAGE_MODEL),
        code_version=version_of("non-private", SPARE, *_written_by(spec)),
        description=(
            f"The ceiling, ε = ∞: the same model with {examples_shown(plan)} of the real records "
            "in its prompt, as many as the methods show examples at most. It copies "
            "private text, stays in the owner-only store, and nothing released depends on it."
        ),
    )
    @private_section(f"{spec.name}/references/non_private_corpus")
    def non_private_corpus(
        context: dg.AssetExecutionContext,
        public_language_model: dict,
        models: Models,
        sensitive_store: SensitiveStore,
        progress: Progress,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.methods.private_prediction.references import generate_non_private

        private = sensitive_store.read_internal(spec.name, "source", purpose="internal evaluation")
        version = version_with_records(
            reference_version(
                spec, public_language_model, models, "non-private", SPARE, *_writer(plan)
            ),
            private.records,
        )
        if ceiling_is_kept(sensitive_store, spec.name, version):
            return dg.MaterializeResult(metadata={"dpsynth/guarantee": "none"})
        with public_section("Opening the public language model"):
            model = prompted(models.language_model(public_language_model), plan.terms.prompts)
        release = generate_non_private(
            reference_settings(plan),
            plan.terms,
            private,
            PublicInputs(language_model=model),
            _documents(spec),
            progress.start(context, f"{spec.name}: non-private reference (ε = ∞)"),
            examples_shown(plan),
        )
        corpus: SyntheticCorpus = release.value
        rows = corpus.rows.head(spec.evaluation.reference_rows)
        keep_ceiling(sensitive_store, spec.name, version, rows)
        return dg.MaterializeResult(metadata={"dpsynth/guarantee": "none"})

    return non_private_corpus


def _read_by_report(
    spec: PrivateDatasetSpec, plan: DatasetPlan
) -> tuple[dict[str, dg.AssetIn], list[dg.AssetKey]]:
    """Values that the report is given, and assets that come before it."""
    ins = {
        "text_embedder": dg.AssetIn(public_key(spec.public_data, "text_embedder")),
        "public_corpus": dg.AssetIn(public_corpus_key(spec)),
    }
    deps = [
        dataset_key(spec.name, SHARED, "private_records"),
        dataset_key(spec.name, SHARED, "private_embeddings"),
        *(dataset_key(spec.name, planned.folder, "corpus") for planned in plan.corpora),
        *model_keys(spec, plan),
    ]
    if spec.evaluation.references:
        ins["public_only_corpus"] = dg.AssetIn(
            dataset_key(spec.name, REFERENCES, "public_only_corpus")
        )
        deps.append(dataset_key(spec.name, REFERENCES, "non_private_corpus"))
    if plan.predictions:
        deps.append(dataset_key(spec.name, EVALUATION, PREDICTION_COSTS))
    return ins, deps


def _evaluation_report(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    ins, deps = _read_by_report(spec, plan)

    @dg.asset(
        **_common(
            spec,
            (EVALUATION, "evaluation_report"),
            INTERNAL,
            "dpsynth_assets.metrics.evaluation.score_corpus",
        ),
        ins=ins,
        deps=deps,
        kinds={"scikitlearn", "html"},
        **model_step(spec.public_data, TEXT_EMBEDDER),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("evaluation", spec.evaluation),
        description=(
            "MAUVE, downstream accuracy, lengths, diversity, overlap and canaries of every corpus, "
            "beside real data, the public-only floor and the non-private ceiling; and of models "
            "trained privately without a corpus. Internal."
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
        **references: pl.DataFrame,
    ) -> dg.MaterializeResult:
        report = progress.start(context, f"{spec.name}: evaluation")
        corpora = list(_corpora(spec, plan, references, sensitive_store))
        scored: list[Scored] = score_corpora(
            spec,
            corpora,
            text_embedder,
            models,
            sensitive_store,
            public_corpus["text"].to_list(),
            report,
        )
        book = ledger.open()
        trained = score_models(spec, plan, book, release_store, sensitive_store)
        written = write_report(spec, plan, scored, book, text_embedder["name"], corpora, trained)
        return dg.MaterializeResult(metadata=written)

    return evaluation_report


def _corpora(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    references: dict[str, pl.DataFrame],
    sensitive_store: SensitiveStore,
) -> Iterator[CorpusToScore]:
    """Every corpus to score: references first, then the published ones."""
    if "public_only_corpus" in references:
        yield CorpusToScore(
            name="public only",
            guarantee="dp",
            epsilon=0.0,
            delta=0.0,
            rows=references["public_only_corpus"],
            role="floor",
        )
        yield CorpusToScore(
            name="non-private",
            guarantee="none",
            epsilon="∞",
            delta=None,
            rows=sensitive_store.read_internal_table(
                spec.name, "non_private_corpus", purpose="internal evaluation"
            ),
            role="ceiling",
        )
    for planned in plan.corpora:
        if released_rows_path(spec.name, planned.folder).exists():
            yield _published(spec, planned, sensitive_store)


def _published(
    spec: PrivateDatasetSpec, planned: PlannedMethod, sensitive_store: SensitiveStore
) -> CorpusToScore:
    rows = read_released(spec.name, planned.folder)
    folder = released_rows_path(spec.name, planned.folder).parents[1]
    guarantee = json.loads((folder / LABEL_FILE).read_text())["guarantee"]
    private_facts = internal_facts(sensitive_store, spec.name, planned.folder)
    return CorpusToScore(
        name=planned.folder,
        guarantee=str(planned.plan.guarantee),
        epsilon=guarantee.get("epsilon"),
        delta=guarantee.get("delta"),
        rows=rows.with_columns(_composite_label(spec)),
        role="corpus",
        seconds=private_facts.get("seconds"),
        ex_post=private_facts,
    )


def _composite_label(spec: PrivateDatasetSpec) -> pl.Expr:
    from dpsynth_assets.datasets import LABEL_SEPARATOR

    columns = spec.columns.labels
    if not columns:
        return pl.lit("").alias("label")
    return pl.concat_str(columns, separator=LABEL_SEPARATOR).alias("label")
