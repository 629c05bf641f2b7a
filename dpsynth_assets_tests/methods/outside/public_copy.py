"""A method of another package: public texts, as many of each label as private records have."""

from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field

from dpsynth_assets.methods.base import Method, MethodConfig, planned
from dpsynth_assets.methods.capabilities import Advice, Candidate
from dpsynth_assets.methods.inputs import UNCOUNTED, counted_labels
from dpsynth_assets.methods.stages import Stage, StageRelease, SyntheticCorpus, Writing
from dpsynth_assets.privacy.calibration import integer_noise_std
from dpsynth_assets.privacy.guarantees import Release

COUNTS = "label_counts"


class PublicCopyConfig(MethodConfig):
    """Settings in the dataset file."""

    method: Literal["public_copy"] = "public_copy"
    rows: int = Field(default=50, ge=1, description="Rows to write (rows).")


class PublicCopy(Method[PublicCopyConfig]):
    """One noisy histogram of labels; rows are public texts in its proportions."""

    name = "public_copy"
    title = "Public texts in private proportions"
    paper = "Nobody 2026, A method from outside"
    arxiv = "2601.00001"
    config_type = PublicCopyConfig
    free_settings = frozenset({"rows"})
    advice = Advice(
        defaults=lambda terms: {"rows": 10 * len(terms.labels)},
        candidates=lambda facts: (Candidate(line="public_copy", settings={"rows": facts.rows}),),
    )

    def stages(self):
        """The histogram."""
        title = "Noisy numbers of records of each label."
        return (Stage(name=COUNTS, title=title, draws=self.release),)

    def writing(self):
        """Rows are copied from the public corpus."""
        return Writing(rows=self.config.rows, reads=frozenset({"public_corpus"}), write=self.write)

    def plan(self, target_epsilon):
        """Finds the least noise at which the histogram costs at most `target_epsilon`."""
        noise_std = integer_noise_std(
            lambda std: [self.terms.histogram(std).event()],
            target_epsilon=target_epsilon,
            delta=self.terms.delta,
            accountant=self.terms.accountant,
        )
        mechanism = self.terms.histogram(noise_std)
        return planned(
            self,
            {COUNTS: mechanism},
            self.config.model_dump(mode="json") | {"noise_std": noise_std},
        )

    def release(self, run):
        """Counts the records of each label, with noise."""
        labels = counted_labels(run.private.records, self.terms.labels)
        counts = np.bincount(labels[labels != UNCOUNTED], minlength=len(self.terms.labels))
        made = run.stage.mechanism.release(counts.tolist())
        return Release(value=StageRelease(facts={"dp_counts": made.value.tolist()}), cost=made.cost)

    def write(self, public, rows, progress):
        """Copies public texts of each label in the released proportions."""
        counts = np.maximum(np.array(public.released[COUNTS].facts["dp_counts"]), 0) + 1e-9
        shares = np.floor(rows * counts / counts.sum()).astype(int)
        documents = public.public_records
        parts = [
            documents.filter(pl.col("label") == label).head(int(share)).select("text", "label")
            for label, share in zip(self.terms.labels, shares, strict=True)
        ]
        written = pl.concat(parts)
        progress(1.0, f"{written.height} rows")
        return SyntheticCorpus(rows=written, facts={"rows": written.height})
