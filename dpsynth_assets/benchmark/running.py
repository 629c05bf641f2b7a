"""Runs and scores the cells of a declared benchmark, each once, and stores them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpsynth_assets.benchmark.cells import Cell, found_cell, score_cell, stands
from dpsynth_assets.benchmark.cohorts import (
    Bench,
    Cohort,
    read_cohort,
    read_documents,
    whole_texts,
)
from dpsynth_assets.datasets.benchmark_spec import BenchmarkDataset, BenchmarkSpec
from dpsynth_assets.datasets.evaluation_section import NextWordSettings
from dpsynth_assets.methods.inputs import ProgressCallback, silent
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.sensitive.fingerprints import refuse_private_table

SCORE_TEXTS = 500
"""Held-out texts that the next-word model is tested on."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a cell stands on the leaderboard.

    Attributes:
        dataset: Name of the dataset.
        line: Name of the method's line, or of a reference.
        epsilon: Budget ε; None for a reference.
        records: Most source records.
        seed: Number of the run.
    """

    dataset: str
    line: str
    epsilon: float | None
    records: int
    seed: int


def places(spec: BenchmarkSpec) -> Iterator[Place]:
    """Every cell of a benchmark: whole grids seed after seed, references first.

    References read as many records as the largest size: they need them for examples alone.
    """
    largest = max(records for _, records in spec.sizes)
    runs = {
        (dataset, method.name): spec.sizes_of(method, dataset)
        for dataset in spec.datasets
        for method in spec.methods
    }
    most = max((n for sizes in runs.values() for n in sizes.values()), default=0)
    for seed in range(max(spec.seeds, most)):
        for dataset in spec.datasets if seed < spec.seeds else ():
            for line in spec.references:
                yield Place(dataset=dataset, line=line, epsilon=None, records=largest, seed=seed)
        for size in spec.sizes:
            for (dataset, name), sizes in runs.items():
                if seed < sizes.get(size, 0):
                    yield Place(
                        dataset=dataset, line=name, epsilon=size[0], records=size[1], seed=seed
                    )


class DatasetBench:
    """One dataset of a benchmark: its records, its public base, its cells.

    Nothing is read before a cell needs it.
    """

    def __init__(
        self,
        spec: BenchmarkSpec,
        name: str,
        folder: Path,
        progress: ProgressCallback = silent,
    ) -> None:
        """Names the dataset.

        Args:
            spec: The benchmark.
            name: A dataset in it.
            folder: Where corpora, facts and scores are kept.
            progress: Called with the share of each stage that is done.
        """
        self.spec, self.name, self.folder, self.progress = spec, name, folder, progress
        self._benches: dict[int, Bench] = {}
        self._cohorts: dict[int, Cohort] = {}

    @property
    def dataset(self) -> BenchmarkDataset:
        """Its declaration."""
        return self.spec.datasets[self.name]

    @property
    def scored_rows(self) -> int:
        """Rows that every corpus is scored on."""
        return self.spec.scored_rows_of(self.name)

    @cached_property
    def cohort(self) -> Cohort:
        """Its records at the largest size.

        Raises:
            PrivacyError: A cohort of this installation has read them as private records.
        """
        refuse_private_table(whole_texts(self.dataset), f"datasets.{self.name}.path")
        return read_cohort(self.name, self.dataset, max(n for _, n in self.spec.sizes))

    def cohort_of(self, records: int) -> Cohort:
        """Its first `records` records, beside the same held-out ones."""
        if records not in self._cohorts:
            self._cohorts[records] = self.cohort.of(records)
        return self._cohorts[records]

    @cached_property
    def public(self) -> PublicBase:
        """Its public base."""
        own = self.dataset.documents
        documents = None if own is None else read_documents(Path(own))
        return PublicBase(documents, name=self.spec.name, **self._public_fields)

    @property
    def _public_fields(self) -> Mapping[str, Any]:
        return self.spec.public_fields(self.name, list(self.cohort.labels.values()))

    def cell(self, place: Place) -> Cell:
        """The cell at a place: another one wherever anything that it depends on differs."""
        cohort = self.cohort_of(place.records)
        shared = {"public": self._public_fields, "documents": self.dataset.documents}
        run: dict[str, Any] = {"method": place.line}
        for line in self.spec.methods:
            if line.name == place.line:
                run = {n: getattr(line, n) for n in ("method", "settings", "declared")}
        return Cell(
            table={**shared, "rows": self.spec.rows, "records": cohort.version},
            cohort=self.name,
            **run,
            epsilon=place.epsilon,
            delta=self.spec.delta,
            seed=place.seed,
        )

    def found(self, place: Place) -> dict[str, Any] | None:
        """A finished cell with its scores; None if it is not there."""
        return found_cell(self.folder, self.cell(place), self.scored_rows)

    def is_done(self, place: Place) -> bool:
        """Whether `run` has nothing to do: a plan that other code refused is tried again."""
        return stands(self.found(place))

    def run(self, place: Place) -> dict[str, Any]:
        """Makes and scores a cell, or reads back what an earlier run has finished."""
        found = self.found(place)
        if found is not None and stands(found):
            return found
        return score_cell(self._bench(place.records), self.cell(place))

    def _bench(self, records: int) -> Bench:
        if records not in self._benches:
            next_word = NextWordSettings(score_texts=SCORE_TEXTS) if self.spec.next_word else None
            self._benches[records] = Bench(
                folder=self.folder,
                cohort=self.cohort_of(records),
                public=self.public,
                rows=self.spec.rows,
                scored_rows=self.scored_rows,
                next_word=next_word,
                encoder=self.spec.encoder,
                progress=self.progress,
            )
        return self._benches[records]
