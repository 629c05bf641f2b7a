"""Writing what leaves: a corpus as Parquet that `datasets` can load, its card, and its label."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.methods.planning import DatasetPlan, PlannedMethod
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.events import event_to_json
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.cards import dataset_card, what_is_not_protected

PROVENANCE = ("method", "batch", "cluster", "n_tokens")


@dataclass(frozen=True, kw_only=True)
class Published:
    """Where a corpus was written, and what the UI shows of it."""

    folder: Path
    metadata: dict[str, Any]


def released_folder(dataset: str, folder: str) -> Path:
    """Folder of one published corpus."""
    return home().released / dataset / folder


def released_rows_path(dataset: str, folder: str) -> Path:
    """The Parquet file of one published corpus."""
    return released_folder(dataset, folder) / "data" / "train-00000-of-00001.parquet"


def read_released(dataset: str, folder: str) -> pl.DataFrame:
    """Rows of a published corpus."""
    return pl.read_parquet(released_rows_path(dataset, folder))


def publish_corpus(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    planned: PlannedMethod,
    candidate: pl.DataFrame,
    ledger: Ledger,
) -> Published:
    """Replaces the published folder with the candidate's rows, a card and a privacy label."""
    rows = published_rows(spec, planned, candidate)
    label = privacy_label(spec, plan, planned, ledger)
    final = released_folder(spec.name, planned.folder)
    temporary = final.with_name(f".{final.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "data").mkdir(parents=True)
    rows.write_parquet(temporary / "data" / "train-00000-of-00001.parquet")
    (temporary / "privacy.json").write_text(json.dumps(label, indent=2, sort_keys=True))
    card = dataset_card(label, columns=rows.columns, rows=rows.height)
    (temporary / "README.md").write_text(card)
    shutil.rmtree(final, ignore_errors=True)
    temporary.replace(final)
    return Published(folder=final, metadata=_metadata(final, rows, label))


def published_rows(
    spec: PrivateDatasetSpec, planned: PlannedMethod, candidate: pl.DataFrame
) -> pl.DataFrame:
    """Columns text, labels, id and provenance, and nothing else."""
    columns = spec.columns.labels
    parts = candidate["label"].str.split(LABEL_SEPARATOR)
    labels = [parts.list.get(i, null_on_oob=True).alias(name) for i, name in enumerate(columns)]
    name = f"{spec.name}-{planned.folder}"
    frame = candidate.with_columns(
        pl.format("{}-{}", pl.lit(name), pl.int_range(pl.len())).alias("id"),
        pl.lit(planned.method.name).alias("method"),
        *labels,
    )
    kept = [column for column in PROVENANCE if column in frame.columns]
    return frame.select("text", *columns, "id", *kept)


def privacy_label(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod, ledger: Ledger
) -> dict[str, Any]:
    """What a reader must know to judge the corpus's guarantee; read from plan and ledger."""
    events = [*plan.events_behind(planned)]
    if planned.plan.event is not None:
        events.append(planned.plan.event)
    spend = ledger.spend(spec.name, plan.budget)
    is_dp = planned.plan.event is not None
    return {
        "dataset": spec.name,
        "corpus": planned.folder,
        "method": planned.method.title,
        "paper": planned.method.paper,
        "guarantee": str(planned.plan.guarantee),
        "epsilon": epsilon_of_fixed(events, spec.budget.delta, spec.budget.accountant)
        if is_dp
        else None,
        "delta": spec.budget.delta if is_dp else None,
        "accountant": spec.budget.accountant,
        "privacy_unit": spec.unit.describe(),
        "neighboring_relation": str(spec.neighboring_relation),
        "events": [event_to_json(event) for event in events],
        "parameters": dict(planned.plan.parameters),
        "public_facts": [*plan.budget.public_facts, "every parameter of this file"],
        "cohort_epsilon": float(spend.epsilon),
        "cohort_budget": spec.budget.epsilon,
        "cohort_guarantee": spend.total_guarantee,
        "not_protected": what_is_not_protected(str(planned.plan.guarantee), spec.unit.describe()),
        "random_numbers": "operating-system entropy; no seed",
    }


def _metadata(folder: Path, rows: pl.DataFrame, label: dict[str, Any]) -> dict[str, Any]:
    samples = rows.head(5).to_dicts()
    names = [name for name in rows.columns if name not in (*PROVENANCE, "id")]
    table = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    table += [
        "| " + " | ".join(str(row[n]).replace("|", "/").replace("\n", " ") for n in names) + " |"
        for row in samples
    ]
    metadata: dict[str, Any] = {"dpsynth/guarantee": label["guarantee"]}
    if label["epsilon"] is not None:
        metadata |= {
            "dpsynth/epsilon": float(label["epsilon"]),
            "dpsynth/delta": float(label["delta"]),
        }
    return metadata | {
        "dpsynth/epsilon_charged": 0.0,
        "dpsynth/epsilon_cumulative": label["cohort_epsilon"],
        "dpsynth/epsilon_remaining": max(0.0, label["cohort_budget"] - label["cohort_epsilon"]),
        "dpsynth/cohort_guarantee": label["cohort_guarantee"],
        "dpsynth/privacy_unit": label["privacy_unit"],
        "dpsynth/neighboring_relation": label["neighboring_relation"],
        "dpsynth/folder": dg.MetadataValue.path(str(folder)),
        "dpsynth/samples": dg.MetadataValue.md("\n".join(table)),
        "dpsynth/privacy_label": dg.MetadataValue.json(label),
        "dagster/row_count": rows.height,
    }
