"""Spans that a candidate shares with private records, shown to the steward and to nobody else.

The comparison reads private text without noise, so its answer may not decide about a release: that
would tell exactly what the records do not contain. It is internal, holds nothing back, and nothing
depends on it.
"""

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.stages import SHARED
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.groups import steward_group
from dpsynth_assets.orchestration.assets.keys import dataset_key, public_key
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.private_section import private_section
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.sensitive.scored_source import ScoredSource
from dpsynth_assets.tags import INTERNAL, PRIVACY

COPIED_SPANS = "copied_spans"
NO_COPIED_SPAN = "no_copied_span"
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
        key=key,
        group_name=steward_group(spec.name, planned),
        owners=spec.owners,
        tags={PRIVACY: INTERNAL},
        metadata=code_references("dpsynth_assets.attacks.overlap.copied_spans"),
        deps=[dataset_key(spec.name, SHARED, "private_records")],
        ins={
            "candidate_corpus": dg.AssetIn(candidate),
            "public_corpus": dg.AssetIn(public_key(spec.public_data, "public_corpus")),
        },
        kinds={"polars"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of(COPIED_SPANS, COPIED_SPANS_CODE),
        check_specs=[
            dg.AssetCheckSpec(
                name=NO_COPIED_SPAN,
                asset=key,
                description="No long span that is particular to one or two private units occurs "
                "verbatim. Internal: it warns the steward and holds nothing back.",
            )
        ],
        description=(
            "Spans of twelve words or more that the candidate shares with one or two private "
            "units, in the owner-only store. Internal: to hold back a corpus because of them tells "
            "something exact about the records, which no ε covers."
        ),
    )
    @private_section("/".join(key.path))
    def copied_spans(
        candidate_corpus: pl.DataFrame,
        public_corpus: pl.DataFrame,
        sensitive_store: SensitiveStore,
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

    private = store.counted_internal(dataset, purpose="internal evaluation")
    found = copied_spans(
        candidate["text"].to_list() if "text" in candidate.columns else [],
        ScoredSource(private=private, by_unit=True).span_holders,
        public_corpus["text"].to_list(),
    )
    rows = [{"row": span.row, "words": " ".join(span.words)} for span in found]
    return pl.DataFrame(rows, schema={"row": pl.Int64, "words": pl.String})
