"""How a method best splits its budget, tried on public text in the place of the records.

Half of some public texts stand for records, the other half is what rows are compared with; these no
model of the trial has read. The texts are a file of public text like the records; or documents of
the public base, those of every other public cluster, so that there is something to learn about
them. Documents that the base's model has invented are no stand-ins: it writes such texts before it
has learnt anything, so the cheapest split would look best. The method runs once for each split.

**Privacy** Reads declarations and public documents; no record, no ledger of an installation.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import MethodSpec, PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.method_run import run_method
from dpsynth_assets.methods.candidates import Choice
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.registry import REGISTRY, get_method
from dpsynth_assets.metrics.comparison import Comparison, compare
from dpsynth_assets.metrics.embedding_distances import (
    energy_distance,
    resampled_energy_distances,
)
from dpsynth_assets.metrics.metric import Estimate, ScoredSide
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base import PublicBase

METRIC = "energy_distance"
LARGEST_EPSILON = 50.0
"""Of a trial: beyond it noise hardly matters, and calibrations were not made for it."""
MOST_LABELS = 20
LEAST_STAND_INS = 100
"""Stand-in texts, and texts they are compared with: with fewer nothing is decided."""


Patch = Mapping[tuple[str, ...], float]
"""Fields that differ from the declaration, by place."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One split and what came of it.

    Attributes:
        patch: Fields that differ from the declaration.
        score: Energy distance of its rows to public texts that no model of the trial has read;
            None if refused.
        rows: Rows that were scored.
        minutes: It took so long.
        refusal: Why there is no score.
    """

    patch: Patch
    score: Estimate | None = None
    rows: int = 0
    minutes: float = 0.0
    refusal: str = ""

    def in_words(self) -> str:
        """The fields that differ."""
        told = (
            f"{'.'.join(place).removeprefix('settings.')} = {setting:g}"
            for place, setting in self.patch.items()
        )
        return ", ".join(told) or "as declared"


@dataclass(frozen=True, kw_only=True)
class SplitAdvice:
    """All trials of a method, the declared split first.

    Attributes:
        method: Folder of the method.
        epsilon: ε of every trial.
        wanted_epsilon: ε at which noise would weigh on the texts as it does on the records; larger
            than `epsilon` where trials do not go that far.
        records: Stand-in records.
        trials: In the order in which they ran.
        best: The split with the least energy distance.
        beside_declared: The best beside the declared one; None where they are the same.
    """

    method: str
    epsilon: float
    wanted_epsilon: float
    records: int
    trials: tuple[Trial, ...]
    best: Trial
    beside_declared: Comparison | None

    @property
    def advised(self) -> Patch:
        """Fields to change: none unless the best is better beyond chance."""
        verdict = None if self.beside_declared is None else self.beside_declared.verdict
        return self.best.patch if verdict == "better" else {}

    def gain_in_words(self) -> str:
        """What the advised split gains, or that nothing is decided."""
        declared = self.trials[0].score
        if declared is None:
            return f"The declared split is refused; of the others {self.best.in_words()} is best."
        found = self.beside_declared
        if found is None:
            return "No other split comes nearer to the texts than the declared one."
        less = -found.difference / max(declared.value, 1e-12)
        shown = f"{self.best.in_words()}: energy distance {less:.0%} less than as declared"
        if found.verdict == "better":
            return f"Gain: {shown}."
        return f"Undecided, so nothing is changed: {shown}, within what chance gives."


def _choices(method: str) -> tuple[Choice, ...]:
    """What splits the budget of a method."""
    return get_method(method).advice.splits


def choices_of(spec: PrivateDatasetSpec, folder: str | None = None) -> MethodSpec:
    """The method whose budget is split: the named one, or the first that splits any.

    Raises:
        ValueError: There is none, or trials cannot stand for its records.
    """
    known = ", ".join(name for name in REGISTRY if _choices(name))
    if spec.structured is not None:
        raise ValueError(
            f"{spec.name}: expected free text to try splits on, got structured records. Public "
            "documents have no such structure: choose the split by hand."
        )
    for entry in spec.methods:
        if folder in (None, entry.key) and _choices(entry.method):
            return entry
    got = folder or ", ".join(entry.key for entry in spec.methods)
    raise ValueError(
        f"{spec.name}: expected a method that splits its budget ({known}), got {got}. Its budget "
        "goes into one mechanism: there is nothing to choose."
    )


class StandIns:
    """Public texts that stand for records, those that score, and a base without the latter.

    Attributes:
        records: Columns `id`, `text`, `label`.
        labels: Their labels; empty where the texts have none.
        base: The public base of the trials.
    """

    def __init__(self, texts: pl.DataFrame, base: PublicBase, seed: int = 0) -> None:
        """Splits texts in half.

        Args:
            texts: Columns `text` and `label`.
            base: Public base of the trials; has none of the texts that will score.
            seed: Seed of the split.

        Raises:
            ValueError: There are too few.
        """
        shuffled = texts.unique("text", maintain_order=True).sample(
            fraction=1.0, shuffle=True, seed=seed
        )
        half = shuffled.height // 2
        if half < LEAST_STAND_INS:
            raise ValueError(
                f"Expected at least {2 * LEAST_STAND_INS} public texts to try splits on, got "
                f"{shuffled.height}. Name a file with more of them by --texts."
            )
        numbered = shuffled.with_row_index("id").cast({"id": pl.String})
        self.records, self.scoring = numbered.head(half), numbered.tail(half)
        values = sorted(set(self.records["label"].to_list()) - {""})
        self.labels = tuple(values) if 2 <= len(values) <= MOST_LABELS else ()
        self.base = base

    @classmethod
    def of_base(cls, declared: PublicDataSpec, documents: pl.DataFrame) -> "StandIns":
        """Takes documents of every other public cluster of a base.

        Raises:
            ValueError: There are too few.
        """
        fields = _fields(declared)
        whole = PublicBase(documents, name=declared.name, **fields)
        found = cls(whole.documents.filter(_in_every_other_cluster(whole)), whole)
        kept = whole.documents.join(found.scoring, on="text", how="anti")
        found.base = PublicBase(kept, name=declared.name, **fields)
        return found

    @cached_property
    def _embedder(self) -> Any:
        manifest = self.base.values(["text_embedder"])["text_embedder"]
        return self.base.models.text_embedder(manifest)

    @cached_property
    def _side(self) -> ScoredSide:
        texts = self.scoring["text"].to_list()
        return ScoredSide.of(self._embedder.embed(texts, public=True))

    def score(self, texts: Sequence[str]) -> Estimate:
        """Energy distance of rows to the texts that score, with paired resamples."""
        side = ScoredSide.of(self._embedder.embed(texts, public=True), name="rows")
        sides = self._side.features, side.features
        draws = resampled_energy_distances(*sides, self._side.counts, side.counts)
        return Estimate.around(energy_distance(*sides), draws)


def optimise_split(
    spec: PrivateDatasetSpec,
    entry: MethodSpec,
    stand_ins: StandIns,
    *,
    rows: int = 200,
    told: Callable[[Trial, int], None] = lambda _trial, _left: None,
) -> SplitAdvice:
    """Runs the method for one split after another, one field at a time, the best kept.

    Args:
        spec: The cohort's declaration.
        entry: The method, of `choices_of`.
        stand_ins: Public texts in the place of records.
        rows: Rows of each trial.
        told: Called after each trial with it and the number of those that are left.
    """
    run = _Trials(spec, entry, stand_ins, rows)
    choices = _choices(entry.method)
    left = sum(len(_other_values(spec, entry, choice)) for choice in choices)
    best = run.of({})
    trials = [best]
    told(best, left)
    for choice in choices:
        standing = best
        for value in _other_values(spec, entry, choice):
            trial = run.of({**standing.patch, choice.place: value})
            left -= 1
            told(trial, left)
            trials.append(trial)
            best = min(best, trial, key=_distance)
    return SplitAdvice(
        method=entry.key,
        epsilon=run.epsilon,
        wanted_epsilon=run.wanted_epsilon,
        records=stand_ins.records.height,
        trials=tuple(trials),
        best=best,
        beside_declared=_beside(trials[0], best),
    )


def _distance(trial: Trial) -> float:
    return float("inf") if trial.score is None else trial.score.value


def _beside(declared: Trial, best: Trial) -> Comparison | None:
    if best is declared or declared.score is None or best.score is None:
        return None
    return compare(METRIC, ("best", best.score), ("declared", declared.score))


def _fields(declared: PublicDataSpec) -> dict[str, Any]:
    """Fields of a base beside its name and its documents."""
    return declared.model_dump(
        mode="json", exclude_unset=True, exclude={"name", "source", "columns", "invented"}
    )


def _in_every_other_cluster(base: PublicBase) -> pl.Series:
    """Whether each document lies in one of the clusters that a seeded coin has chosen."""
    centers = base.values(["public_clusters"])["public_clusters"]
    nearest = np.argmax(base.embeddings @ centers.T, axis=1)
    order = np.random.default_rng(0).permutation(len(centers))
    return pl.Series(np.isin(nearest, order[: (len(order) + 1) // 2]))


def _other_values(spec: PrivateDatasetSpec, entry: MethodSpec, choice: Choice) -> tuple[float, ...]:
    """Values of a choice that differ from the declared one."""
    declared = _declared_value(spec, entry, choice)
    return tuple(value for value in choice.values if value != declared)


def _declared_value(spec: PrivateDatasetSpec, entry: MethodSpec, choice: Choice) -> Any:
    """The value that holds today: the file's, or the default."""
    top, name = choice.place
    if top == "settings":
        defaults = get_method(entry.method).config_type.model_fields
        return entry.settings.get(name, defaults[name].default)
    section = getattr(spec, top)
    return None if section is None else getattr(section, name)


class _Trials:
    """Runs of one method over the stand-ins, each on a ledger that is thrown away."""

    def __init__(
        self, spec: PrivateDatasetSpec, entry: MethodSpec, stand_ins: StandIns, rows: int
    ) -> None:
        self._spec, self._entry, self._stand_ins, self._rows = spec, entry, stand_ins, rows
        texts = stand_ins.records.height
        self._scale = (spec.public_facts.records or texts) / spec.privacy_unit.max_records / texts
        self.wanted_epsilon = _declared_epsilon(spec, entry) * self._scale
        self.epsilon = min(LARGEST_EPSILON, self.wanted_epsilon)

    def of(self, patch: Patch) -> Trial:
        """Runs and scores one split."""
        (settings, declared), started = self._arguments(patch), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dpsynth-split-") as scratch:
            try:
                found = run_method(
                    self._entry.method,
                    self._stand_ins.records.select("id", "text", "label"),
                    self._stand_ins.base,
                    epsilon=self.epsilon,
                    delta=self._spec.budget.delta,
                    settings=settings,
                    labels=self._stand_ins.labels,
                    rows=self._rows,
                    cohort="stand_in",
                    declared=declared,
                    ledger=Ledger(f"sqlite:///{scratch}/ledger.db"),
                    store=Path(scratch) / "store",
                )
            except (PrivacyError, ValueError) as refusal:
                return Trial(patch=patch, refusal=str(refusal).splitlines()[0])
        texts = [] if found.corpus is None else found.corpus["text"].to_list()
        if len(texts) < 2:
            return Trial(patch=patch, refusal="its budget buys no two rows")
        return Trial(
            patch=patch,
            score=self._stand_ins.score(texts[: self._rows]),
            rows=min(len(texts), self._rows),
            minutes=(time.monotonic() - started) / 60,
        )

    def _arguments(self, patch: Patch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings of the method, and further fields of the dataset file."""
        spec, settings = self._spec, dict(self._entry.settings)
        settings |= get_method(self._entry.method).advice.for_rows(self._rows)
        histograms = {
            name: section.model_dump(mode="json")
            for name in ("cluster_histogram", "topic_histogram")
            if (section := getattr(spec, name)) is not None
        }
        for (top, name), value in patch.items():
            fields = settings if top == "settings" else histograms.setdefault(top, {})
            fields[name] = value
        if "topic_histogram" in histograms:  # Noise on counts, which are as much smaller here.
            histograms["topic_histogram"]["noise_std"] /= self._scale
        return settings, {
            "columns": {"id": "id"},
            "neighboring_relation": str(spec.neighboring_relation),
            "public_facts": {"records": self._stand_ins.records.height},
            "budget": {"accountant": "zcdp"},
            **histograms,
        }


def _declared_epsilon(spec: PrivateDatasetSpec, entry: MethodSpec) -> float:
    """What the method and the histogram that it reads get of the budget, as ε of one round.

    Noise on a mean over n records of k contributions to a unit shrinks as ε·n / k, so that with
    fewer texts in their place it weighs the same at an ε that is as much larger.
    """
    planned = plan_dataset(spec)
    shares = [found.share for found in planned.methods if found.folder == entry.key]
    share = sum(shares) + (planned.histogram.share if planned.histogram else 0.0)
    return min(1.0, share or 1.0) * spec.budget.epsilon / spec.budget.rounds
