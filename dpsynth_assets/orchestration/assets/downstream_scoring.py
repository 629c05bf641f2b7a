"""Downstream models that were trained privately, without a corpus, scored beside the corpora.

**Privacy** Real held-out records are read without noise: the scores are internal, as all of the
evaluation. The models themselves are released; scoring one costs nothing.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.metrics.downstream import downstream_model_scores
from dpsynth_assets.metrics.registry import pictured
from dpsynth_assets.orchestration.assets.keys import dataset_key
from dpsynth_assets.orchestration.resources.stores import ReleaseStore, SensitiveStore
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry


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
        entry = _latest(ledger, spec, planned, stage)
        if entry is None:
            continue
        records, embeddings = store.read_for_scoring(spec.name, "held_out")
        said, labels = records["text"].to_list(), records["label"].to_list()
        files, event, terms = releases.files(entry.reservation), entry.event, plan.terms
        rows.append(
            {
                "name": f"{planned.folder} model",
                "role": "model",
                "guarantee": entry.guarantee,
                "epsilon": event and epsilon_of([event], terms.delta, terms.accountant),
                "delta": terms.delta,
                **dict.fromkeys(("rows", "seconds", *pictured())),
                **downstream_model_scores(files, said, labels, embeddings),
            }
        )
    return rows


def _models(plan: DatasetPlan) -> Iterator[tuple[PlannedMethod, str]]:
    """Methods that write no corpus, each with the stage that releases its model: the last one."""
    for planned in plan.methods:
        if not planned.writes_corpus:
            yield planned, planned.plan.stages[-1].name


def _latest(
    ledger: Ledger, spec: PrivateDatasetSpec, planned: PlannedMethod, stage: str
) -> LedgerEntry | None:
    """The charge of the model that was committed last."""
    asset = f"{spec.name}/{planned.folder}/{stage}"
    entries = [entry for entry in ledger.entries(spec.account) if entry.asset == asset]
    committed = {entry.reservation for entry in entries if entry.kind == "commit"}
    charges = [e for e in entries if e.kind == "reserve" and e.reservation in committed]
    return charges[-1] if charges else None
