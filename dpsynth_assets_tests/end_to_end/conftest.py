"""One small cohort, run through the whole graph once for all end-to-end tests."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.assets.public import public_definitions
from dpsynth_assets.components.cohort import cohort_definitions
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.defs.resources import resources

LABELS = ("billing", "delivery")
BUDGET = {"epsilon": 60.0, "delta": 1e-5, "accepts_ex_post": True}
PLANTED = (0, 1)  # Ids `secret0` and `secret1` fall into the source split.
CANARY = "XQ7-ZZ19-KV04"
SECRET = (
    "Ottoline Brackenbury of 41 Thistledown Crescent asked why account 991207 was closed on "
    "Monday although her sister had paid for it in cash"
)

_OPENINGS = ("Good morning,", "Hello,", "To whom it may concern,", "Hi team,")
_BODIES = {
    "billing": ("the invoice shows {} euros too much", "my card was charged {} times this week"),
    "delivery": ("the parcel is {} days late", "box number {} came to the wrong door"),
}
_CLOSINGS = ("please help soon.", "thank you for looking into it.", "kind regards from the hills.")


def documents(count: int, seed: int, tone: str = "") -> pl.DataFrame:
    """Labelled sentences of a tiny grammar."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(LABELS)
        body = draw.choice(_BODIES[label]).format(draw.randrange(2, 99))
        text = f"{draw.choice(_OPENINGS)} {tone}{body}, {draw.choice(_CLOSINGS)}"
        rows.append({"text": text, "label": label})
    return pl.DataFrame(rows)


def write_sources(folder: Path) -> None:
    """Public Parquet, private JSON Lines with one planted secret and canary, canary list."""
    documents(400, seed=1).write_parquet(folder / "public.parquet")
    private = documents(400, seed=2, tone="I am upset that ").with_row_index("number")
    private = private.with_columns(pl.format("T{}", "number").alias("id")).drop("number")
    planted = [
        {"text": f"{SECRET}, code {CANARY}.", "label": "billing", "id": f"secret{index}"}
        for index in PLANTED
    ]
    rows = [*private.select("text", "label", "id").to_dicts(), *planted]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "private.jsonl").write_text(lines)
    (folder / "canaries.txt").write_text(CANARY + "\n")


def public_spec(folder: Path) -> PublicDataSpec:
    return PublicDataSpec.model_validate(
        {
            "name": "tiny",
            "source": {"path": str(folder / "public.parquet")},
            "columns": {"labels": ["label"]},
            "language_model": {
                "settings": {
                    "vocabulary": 400,
                    "width": 32,
                    "layers": 2,
                    "heads": 2,
                    "feed_forward": 64,
                    "token_budget": 60_000,
                    "sequence_tokens": [96],
                }
            },
            "clusters": {"count": 6},
        }
    )


def private_spec(folder: Path, **changes: Any) -> PrivateDatasetSpec:
    shared = {
        "expected_batch_size": 24,
        "max_batches": 3,
        "max_document_tokens": 40,
        "max_example_tokens": 40,
        "min_tokens_for_new_document": 8,
        "temperature": 1.2,
    }
    fields: dict[str, Any] = {
        "name": "letters",
        "source": {"path": str(folder / "private.jsonl")},
        "columns": {"labels": ["label"], "id": "id"},
        "public_facts": {"labels": {"label": list(LABELS)}},
        "budget": BUDGET,
        "held_out_fraction": 0.25,
        "public_data": "tiny",
        "cluster_histogram": {"budget_share": 0.05, "clusters_per_label": 2},
        "methods": [
            {
                "method": "mean_uniform",
                "budget_share": 0.4,
                "settings": shared,
            },
            {"method": "mean_clustered", "budget_share": 0.4, "settings": shared},
            {"method": "median_clustered", "settings": {**shared, "matched_epsilon": 24.0}},
            {
                "method": "mean_svt",
                "budget_share": 0.14,
                "settings": {
                    **shared,
                    "min_tokens_for_new_document": 2,
                    "max_tokens_per_batch": 80,
                },
            },
        ],
        "evaluation": {
            "canaries": str(folder / "canaries.txt"),
            "rows": 60,
            "reference_rows": 40,
        },
        "schedule": {"cron": "0 3 1 * *"},
    }
    return PrivateDatasetSpec.model_validate(fields | changes)


@dataclass(frozen=True)
class House:
    """A finished run: where it ran, what was declared, and what Dagster says of it."""

    folder: Path
    home: Path
    spec: PrivateDatasetSpec
    definitions: dg.Definitions
    instance: dg.DagsterInstance
    result: Any

    def run(self, selection: str, **options: Any) -> Any:
        """Runs a selection again in the same house."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        graph = self.definitions.resolve_asset_graph()
        keys = list(dg.AssetSelection.from_string(selection).resolve(graph))
        return job.execute_in_process(
            instance=self.instance, asset_selection=keys, raise_on_error=False, **options
        )

    def metadata(self, *path: str) -> dict[str, Any]:
        """Latest materialisation metadata of an asset."""
        event = self.instance.get_latest_materialization_event(dg.AssetKey(list(path)))
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def definitions_of(public: PublicDataSpec, private: PrivateDatasetSpec) -> dg.Definitions:
    return dg.Definitions.merge(
        public_definitions(public), cohort_definitions(private), resources()
    )


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("house")
    home = folder / "home"
    patch = pytest.MonkeyPatch()
    patch.setenv("DPSYNTH_HOME", str(home))
    patch.delenv("DPSYNTH_LEDGER_URL", raising=False)
    patch.setenv("HF_HUB_OFFLINE", "1")
    write_sources(folder)
    spec = private_spec(folder)
    definitions = definitions_of(public_spec(folder), spec)
    (home / "dagster").mkdir(parents=True)
    with dg.DagsterInstance.local_temp(str(home / "dagster")) as instance:
        unfinished = House(folder, home, spec, definitions, instance, None)
        result = unfinished.run("*")
        yield House(folder, home, spec, definitions, instance, result)
    patch.undo()
