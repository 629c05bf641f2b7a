"""What the EPSVec benchmarks share: a public base, the method's stages, rows, scores.

Library level: the registered method runs as it is planned, without Dagster. Stages are kept by what
they depend on, as the product keeps them: variants that share candidates or shots share them here.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ctcl_runs import Corpus

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec import EpsVec
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.shots import FixedShots
from dpsynth_assets.methods.epsvec.stages import SHOTS
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.energy import energy_distance
from dpsynth_assets.metrics.mauve import MINIMUM_ROWS, MauveSettings, mauve_score
from dpsynth_assets.models.engines import Engine
from dpsynth_assets.models.fine_tuning import CheckpointFolders
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

DELTA = 1e-6


@dataclass(frozen=True, kw_only=True)
class Base:
    """Public side: the engine, the embedder and documents for clip bounds."""

    engine: Engine
    embedder: TextEmbedder
    documents: pl.DataFrame = field(repr=False)
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """One private corpus with a test split, and what is public about it."""

    name: str
    train: Corpus
    test: Corpus
    labels: tuple[str, ...]
    label_texts: tuple[str, ...]

    def terms(self, epsilon: float) -> CohortTerms:
        """Declared facts: add/remove neighbours, a public number of records."""
        return CohortTerms(
            cohort=self.name,
            relation=NeighboringRelation.ADD_REMOVE,
            unit=PrivacyUnit(),
            epsilon=epsilon,
            delta=DELTA,
            accountant="tight",
            labels=self.labels,
            label_texts=self.label_texts,
            public_records=len(self.train.texts),
        )

    def private(self) -> PrivateInputs:
        """Records as a stage reads them."""
        frame = pl.DataFrame(
            {
                "record_id": [str(row) for row in range(len(self.train.texts))],
                "text": self.train.texts,
                "label": self.train.labels,
            }
        )
        return PrivateInputs(records=frame, embeddings=self.train.features)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A method whose stages are done: rows follow for nothing."""

    method: EpsVec
    plan: MethodPlan
    public: PublicInputs

    def rows(self, count: int, seed: int = 0, **changes: Any) -> pl.DataFrame:
        """Writes rows with other settings of writing, or without vectors."""
        config = EpsVecConfig.model_validate(self.method.config.model_dump() | changes)
        public = replace(self.public, seed=seed)
        return EpsVec(config, self.method.terms).write(public, count, quietly).rows


def released(
    base: Base,
    method: EpsVec,
    plan: MethodPlan,
    private: PrivateInputs,
    seed: int = 0,
    *,
    shared: str = "",
) -> Run:
    """Runs every stage, or reads back what an earlier run with the same settings released.

    Args:
        base: Public side.
        method: The method; what is paid for belongs to `method.terms.cohort` alone.
        plan: The method's plan.
        private: Records.
        seed: Seed of public randomness.
        shared: Whose candidates these are; several accounts over one corpus may share them.

    Raises:
        ValueError: If the plan refused.
    """
    if plan.refusal is not None:
        raise ValueError(plan.refusal)
    public = PublicInputs(
        language_model=None,
        engine=base.engine,
        text_embedder=base.embedder,
        public_records=base.documents,
        seed=seed,
        salt=f"{method.terms.cohort}/{seed}",
    )
    for stage in plan.stages:
        behind = [str(each.folder) for each in public.released.values()]
        owner = (shared if stage.public else "") or method.terms.cohort
        settings = dict(stage.settings)
        place = base.folder / f"{stage.name}-{_digest([settings, behind, seed, owner])}"
        if not (place / "facts.json").exists():
            _run_stage(stage, place, method, private, public)
        facts = json.loads((place / "facts.json").read_text())
        done = Released(reservation=stage.name, facts=facts, folder=place / "files")
        public = replace(public, released={**public.released, stage.name: done})
    return Run(method=method, plan=plan, public=public)


def _run_stage(stage, place: Path, method, private, public) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if stage.public:
        (place / "files").mkdir()
        made = method.make_public(stage, public, place / "files", quietly)
    else:
        kept = CheckpointFolders(place / "unfinished")
        made = method.release(stage, private, public, kept, quietly).value
        shutil.copytree(made.files, place / "files", dirs_exist_ok=True)
    (place / "facts.json").write_text(json.dumps(dict(made.facts)))


def with_real_shots(run: Run, cohort: Cohort, folder: Path) -> Run:
    """The same run with records as fixed shots: no privacy at all, a reference."""
    draw = np.random.default_rng(0)
    labels = np.array(cohort.train.labels)
    shots = tuple(
        tuple(
            cohort.train.texts[row]
            for row in draw.choice(np.flatnonzero(labels == label), run.method.config.shots)
        )
        for label in cohort.labels
    )
    folder.mkdir(parents=True, exist_ok=True)
    FixedShots(ranked=shots).save(folder)
    done = Released(reservation="none", facts={}, folder=folder)
    method, without = run.method, {"use_vectors": False, "use_fixed_shots": True}
    public = replace(run.public, released={**run.public.released, SHOTS: done})
    method = EpsVec(method.config.model_copy(update=without), method.terms)
    return replace(run, method=method, public=public)


def scores(
    rows: pl.DataFrame, cohort: Cohort, base: Base, *, repeats: int = 3, seed: int = 0
) -> dict:
    """How near rows are to held-out records, and what a classifier trained on them gets right.

    MAUVE, which lies near zero for a model of a million parameters; the energy distance of the
    embeddings, which still tells such corpora apart (smaller is nearer); accuracy on the records.
    """
    found: dict[str, Any] = {"rows": rows.height}
    if not rows.height:
        return found
    features = base.embedder.embed(rows["text"].to_list())
    labels = rows["label"].to_list()
    found["energy"] = float(energy_distance(features, cohort.test.features))
    if len(cohort.labels) > 1 and len(set(labels)) > 1:
        found["accuracy"] = downstream_accuracy(
            features, labels, cohort.test.features, cohort.test.labels, seed
        )
    if min(rows.height, len(cohort.test.texts)) >= MINIMUM_ROWS:
        settings = MauveSettings(repeats=repeats, max_rows=rows.height, seed=seed)
        made = mauve_score(cohort.test.features, features, settings)
        found |= {"mauve": made.mean, "mauve_std": made.std}
    return found


def corpus_rows(corpus: Corpus, count: int) -> pl.DataFrame:
    """The first rows of a real corpus, as rows."""
    return pl.DataFrame({"text": corpus.texts[:count], "label": corpus.labels[:count]})


def quietly(_share: float, _message: str) -> None:
    """Reports to nobody."""


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
