"""Downstream models that were trained privately, without a corpus, scored beside the corpora.

**Privacy** Real held-out records are read without noise: the scores are internal, as all of the
evaluation. The models themselves are released; scoring one costs nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.metrics.downstream import downstream_model_scores
from dpsynth_assets.orchestration.assets.keys import dataset_key
from dpsynth_assets.orchestration.resources.release_store import ReleaseStore
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry


@dataclass(frozen=True, kw_only=True)
class ScoredModel:
    """One released downstream model.

    Attributes:
        name: Folder of its method.
        guarantee: Of its release.
        epsilon: ε of its own charge at the cohort's δ.
        delta: The cohort's δ.
        scores: Internal: `accuracy`, or next-word accuracy and perplexity.
    """

    name: str
    guarantee: str
    epsilon: float | None
    delta: float
    scores: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Its row in the report's table: there are no rows of text to score."""
        return {
            "name": f"{self.name} model",
            "role": "model",
            "guarantee": self.guarantee,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rows": None,
            "seconds": None,
            "mauve": None,
            "accuracy": None,
            **self.scores,
        }


def model_keys(spec: PrivateDatasetSpec, plan: DatasetPlan) -> list[dg.AssetKey]:
    """Assets of the models that are scored."""
    return [dataset_key(spec.name, p.folder, stage) for p, stage in _models(plan)]


def score_models(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    ledger: Ledger,
    releases: ReleaseStore,
    store: SensitiveStore,
) -> list[ScoredModel]:
    """Tests the latest release of every downstream model on held-out records.

    A model that was not released yet is left out, as a corpus is.
    """
    return [
        _scored(spec, plan, planned, entry, releases, store)
        for planned, stage in _models(plan)
        if (entry := _latest(ledger, spec, planned, stage)) is not None
    ]


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


def _scored(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    planned: PlannedMethod,
    entry: LedgerEntry,
    releases: ReleaseStore,
    store: SensitiveStore,
) -> ScoredModel:
    records, embeddings = store.read_for_scoring(spec.name, "held_out")
    event, terms = entry.event, plan.terms
    return ScoredModel(
        name=planned.folder,
        guarantee=entry.guarantee,
        epsilon=None if event is None else epsilon_of([event], terms.delta, terms.accountant),
        delta=terms.delta,
        scores=downstream_model_scores(
            releases.files(entry.reservation),
            records["text"].to_list(),
            records["label"].to_list(),
            embeddings,
        ),
    )
