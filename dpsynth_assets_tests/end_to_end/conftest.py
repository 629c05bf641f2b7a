"""One small public base, and one cohort run through the whole graph: made once, then copied."""

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.attacks.audits import save_results
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.definitions import resources
from dpsynth_assets.methods.audits import audits_for
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.audit import planned_charges
from dpsynth_assets.orchestration.assets.public import public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets_tests.children import python
from dpsynth_assets_tests.declared import written
from dpsynth_assets_tests.prepared import audited, made_base, made_once
from dpsynth_assets_tests.tiny_models import write_generator, write_language_model

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
    """What is public, private JSON Lines with one planted secret and canary, canary list."""
    write_public(folder)
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


def write_public(folder: Path) -> list[str]:
    """Public Parquet, a language model and a generator of its words; returns the texts."""
    public = documents(400, seed=1)
    public.write_parquet(folder / "public.parquet")
    texts = public["text"].to_list()
    write_language_model(folder / "language_model", texts)
    write_generator(folder / "generator", texts)
    return texts


def public_spec(folder: Path) -> PublicDataSpec:
    return PublicDataSpec.model_validate(
        {
            "name": "tiny",
            "source": {"path": str(folder / "public.parquet")},
            "columns": {"labels": ["label"]},
            "language_model": {"kind": "pretrained", "model": str(folder / "language_model")},
            "conditional_generator": {"kind": "pretrained", "model": str(folder / "generator")},
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
        "clip_bound": 6.0,
    }
    sparse = {**shared, "min_tokens_for_new_document": 2, "max_tokens_per_batch": 80}
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
            {"method": "mean_uniform", "budget_share": 0.4, "settings": shared},
            {"method": "mean_clustered", "budget_share": 0.4, "settings": shared},
            {"method": "median_clustered", "settings": {**shared, "matched_epsilon": 24.0}},
            {"method": "mean_svt", "budget_share": 0.14, "settings": sparse},
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
class Run:
    """A run that another process may have made, as its event log tells of it."""

    success: bool
    all_events: list[dg.DagsterEvent]

    @classmethod
    def stored(cls, instance: dg.DagsterInstance, run_id: str) -> "Run":
        """Reads a finished run."""
        logged = (record.dagster_event for record in instance.all_logs(run_id))
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return cls(run.is_success, [event for event in logged if event is not None])


@dataclass(frozen=True)
class House:
    """A finished run: where it ran, what was declared, and what Dagster says of it."""

    folder: Path
    spec: PrivateDatasetSpec
    definitions: dg.Definitions
    instance: dg.DagsterInstance
    result: Any = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

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
        public_definitions(public), declared_definitions(private), resources()
    )


@contextmanager
def installation_in(folder: Path) -> Iterator[dg.DagsterInstance]:
    """The home of a folder as this process's installation; yields its Dagster instance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(folder / "home"))
        patch.delenv("DPSYNTH_LEDGER_URL", raising=False)
        patch.setenv("HF_HUB_OFFLINE", "1")
        with dg.DagsterInstance.local_temp(str(folder / "home" / "dagster")) as instance:
            yield instance


def keep_audits(temporary: Any, home: Path, spec: PrivateDatasetSpec) -> None:
    """Keeps the session's results of the audits of a cohort's mechanisms in a home."""
    audits = audits_for(planned_charges(plan_dataset(spec)))
    save_results(home / "audits.json", [audited(temporary, audit.name) for audit in audits])


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """The sources, and a home with everything public made: copied, never changed."""

    def make(folder: Path) -> None:
        write_sources(folder)
        made_base(tmp_path_factory, folder / "home", public_spec(folder))

    return made_once(tmp_path_factory, "tiny", make)


@pytest.fixture(scope="session")
def finished_house(tmp_path_factory, tiny_base):
    """The same with dataset files, and the cohort `letters` made by `dpsynth run`; its run's id."""

    def make(folder: Path) -> None:
        shutil.copytree(tiny_base, folder, dirs_exist_ok=True)
        base, cohort = public_spec(folder), private_spec(folder)
        for spec, kind in ((base, "PublicData"), (cohort, "PrivateDataset")):
            fields = spec.model_dump(mode="json", exclude_unset=True)
            written(folder / f"{spec.name}.yaml", fields, kind)
        with installation_in(folder) as instance:
            keep_audits(tmp_path_factory, folder / "home", cohort)
            program = ("-c", "from dpsynth_assets.cli.main import main; main()")
            command = ("run", cohort.name, "--select", f'key:"{cohort.name}/*"', "--yes")
            places = {"DPSYNTH_DATASETS": str(folder), "DAGSTER_HOME": str(folder / "home/dagster")}
            python(*program, *command, where=folder, **places)
            (run,) = instance.get_runs(limit=1)
        (folder / "run").write_text(run.run_id)

    return made_once(tmp_path_factory, "letters", make)


@pytest.fixture(scope="module")
def house(tmp_path_factory, finished_house):
    """A copy of the finished house."""
    folder = tmp_path_factory.mktemp("house") / "copy"
    shutil.copytree(finished_house, folder)
    spec = private_spec(folder)
    with installation_in(folder) as instance:
        definitions = definitions_of(public_spec(folder), spec)
        result = Run.stored(instance, (folder / "run").read_text())
        yield House(folder, spec, definitions, instance, result)
