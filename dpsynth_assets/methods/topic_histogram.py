"""The released histogram over labels and public topics, which conditional generation follows.

Letters: N records, L labels, K topics; bin K holds records that no topic fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import BaseModel, model_validator

from dpsynth_assets.datasets import TopicHistogramSpec
from dpsynth_assets.methods.base import Staged, mechanism_of, planned
from dpsynth_assets.methods.inputs import UNCOUNTED, PrivateInputs, counted_labels
from dpsynth_assets.methods.stages import MethodPlan, Stage, StageRelease, StageRun
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import Release
from dpsynth_assets.privacy.histogram import NoisyHistogram

if TYPE_CHECKING:
    from dpsynth_assets.models.topic_model.model import TopicModel

TOPIC_HISTOGRAM = "topic_histogram"
"""Name of the stage, and of its asset."""


class TopicHistogram(BaseModel, frozen=True):
    """Noisy record counts by label and topic. Released; safe to store and to print.

    Attributes:
        labels: Declared labels, in order; ("",) where there are none.
        dp_counts: L rows of K + 1 noisy counts, the last of each row unclassified; may be negative.
        noise_std: Public standard deviation of the noise on each count (records).
    """

    labels: tuple[str, ...]
    dp_counts: tuple[tuple[int, ...], ...]
    noise_std: float

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        widths = {len(row) for row in self.dp_counts}
        if len(self.labels) != len(self.dp_counts) or len(widths) != 1 or min(widths) < 2:
            raise ValueError(
                f"Expected K + 1 >= 2 counts for each of {len(self.labels)} labels, got "
                f"{len(self.dp_counts)} rows of lengths {sorted(widths)}."
            )
        return self

    @property
    def bins(self) -> int:
        """K + 1: topics and the unclassified bin."""
        return len(self.dp_counts[0])

    def proportions(self) -> np.ndarray:
        """Estimates each cell's share of the records.

        Noisy counts are projected onto the non-negative counts of the same total
        (`project_to_total`).

        Returns:
            float64 (L, K + 1), non-negative, summing to 1 over all labels and topics; a row's sum
            is the label's share. Uniform if nothing is left.

        **Privacy** Post-processing of noisy counts and public numbers.

        Noisy counts of empty cells are half of them positive: clamped at 0 each would bring 0.4
        standard deviations of records that do not exist, 26,000 in the 6,505 cells of 5 labels
        and 1,300 topics. The projection subtracts one amount from all cells, chosen by the data so
        that the total stays what was released; no multiple of the noise did as well over few and
        many cells, flat and steep (`benchmarks/topic_model.py --denoising`).
        """
        dp_counts = np.asarray(self.dp_counts, dtype=np.float64)
        kept = project_to_total(dp_counts.ravel(), dp_counts.sum()).reshape(dp_counts.shape)
        total = kept.sum()
        return kept / total if total > 0 else np.full(kept.shape, 1.0 / kept.size)

    def allocate(self, rows: int, seed: int) -> np.ndarray:
        """Shares out rows over cells in proportion: int64 (L, K + 1) summing to `rows`.

        Each cell gets its quota rows x share rounded down or up, and so does each label; seen over
        seeds the expectation is the quota itself. (Largest remainders would give nothing, ever, to
        cells whose quota is small, which hold much of the mass where rows are few.)

        Raises:
            ValueError: `rows` is negative.
        """
        if rows < 0:
            raise ValueError(f"Expected rows >= 0, got {rows}.")
        ends = np.cumsum(self.proportions().ravel())
        # One point in each unit of the quotas' line: points start + 0, start + 1, ...
        start = np.random.default_rng(seed).random()
        before = np.ceil(np.append(ends[:-1] / ends[-1] * rows, rows) - start)
        counts = np.diff(np.clip(before, 0, rows), prepend=0.0)
        return counts.astype(np.int64).reshape(len(self.labels), self.bins)

    def sample_cells(self, rows: int, seed: int) -> np.ndarray:
        """Names the cell of each row to be written, in an order that mixes cells.

        Args:
            rows: Rows to write, >= 0.
            seed: Public seed of the rounding and of the order.

        Returns:
            int64 (rows, 2): label index in [0, L) and topic in [0, K]. Equal arguments give equal
            cells.

        **Source** Tan et al. 2025, section 3.4 [ctcl S3.4].
        """
        counts = self.allocate(rows, seed)
        cells = np.repeat(np.arange(counts.size), counts.ravel())
        np.random.default_rng([seed, rows]).shuffle(cells)
        return np.stack(np.divmod(cells, self.bins), axis=1)


def project_to_total(dp_counts: np.ndarray, total: float) -> np.ndarray:
    """Finds the nearest non-negative counts of a given sum, in Euclidean distance.

    Args:
        dp_counts: (M,) noisy counts.
        total: Sum of the result.

    Returns:
        (M,) max(dp_counts - t, 0) with t such that they sum to `total`; without a positive total,
        the counts clamped at 0.

    **Source** Duchi, Shalev-Shwartz, Singer, Chandra 2008 (projection onto the simplex).
    """
    if total <= 0:
        return np.maximum(dp_counts, 0.0)
    descending = np.sort(dp_counts)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, len(descending) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    return np.maximum(dp_counts - excess[last], 0.0)


@dataclass(frozen=True, kw_only=True)
class TopicCounts:
    """Counts records by label and topic, for `PrivateInputs.counted`.

    Attributes:
        labels: L declared labels, in order.
        topic_model: Public topics, of the embedder of the records.
    """

    labels: tuple[str, ...]
    topic_model: "TopicModel"

    def __call__(self, private: PrivateInputs) -> np.ndarray:
        """Counts (L * bins,) int64, label by label; private.

        Raises:
            ValueError: There are no embeddings, or they do not match the records or the topics.
        """
        topics, bins = self.topic_model.assign(private.vectors), self.topic_model.bins
        label_of = counted_labels(private.records, self.labels)
        cells = (label_of * bins + topics)[label_of != UNCOUNTED]
        return np.bincount(cells, minlength=len(self.labels) * bins)


@dataclass(frozen=True, kw_only=True)
class TopicCounting:
    """One noisy histogram over labels and public topics, unclassified records included.

    Attributes:
        histogram: Noise and price.
        labels: Declared labels, in order.

    **Privacy** The cells are public: declared labels times the bins of a public model. A record's
    cell depends on that record alone, so a record that enters or leaves moves one cell by one: L2
    sensitivity 1 under add/remove and zero-out, √2 under replace-one, times the records of a unit
    (`privacy.histogram.l2_sensitivity`). The label is inside the histogram, so that it costs no
    release of its own. Records under an undeclared label and null records are counted nowhere.

    **Source** Tan et al. 2025, section 3.3 [ctcl S3.3] and appendix F; appendix E for the
    noise. The paper draws floating-point noise under a fixed seed (errata B-002.2); ours is
    integer, from the operating system.
    """

    histogram: NoisyHistogram
    labels: tuple[str, ...]

    def event(self) -> Event:
        """Prices the histogram: one Gaussian event."""
        return self.histogram.event()

    def release(self, private: PrivateInputs, topic_model: "TopicModel") -> Release[TopicHistogram]:
        """Counts records by label and topic and adds noise to each cell.

        Args:
            private: Records with `label`, and their embeddings.
            topic_model: Public topics, of the same embedder.

        Raises:
            ValueError: There are no embeddings, or they do not match the records or the topics.
        """
        counts = private.counted(TopicCounts(labels=self.labels, topic_model=topic_model))
        made = self.histogram.release(counts)
        rows = made.value.reshape(len(self.labels), topic_model.bins).tolist()
        histogram = TopicHistogram(
            labels=self.labels,
            dp_counts=rows,
            noise_std=float(self.histogram.scale),
        )
        return Release(value=histogram, cost=made.cost)


class TopicHistogramRelease(Staged[TopicHistogramSpec]):
    """The topic histogram of a dataset, in whose proportions corpora are written."""

    name = TOPIC_HISTOGRAM

    def stages(self) -> tuple[Stage, ...]:
        """The histogram."""
        stage = Stage(
            name=TOPIC_HISTOGRAM,
            title=(
                "Noisy counts per label and public topic, unclassified records included "
                "(Tan et al. 2025, Section 3.3). Corpora are written in its proportions."
            ),
            kinds=("opendp",),
            needs_embeddings=True,
            in_parts=True,
            on_gpu=False,
            reads=frozenset({"topic_model"}),
            draws=self.release,
            mechanism_name="gaussian histogram over public topics",
            identity=_named,
        )
        return (stage,)

    def plan(self) -> MethodPlan:
        """Prices the declared noise."""
        noise_std = self.config.noise_std
        mechanism = TopicCounting(
            histogram=self.terms.histogram(noise_std), labels=self.terms.labels
        )
        return planned(
            self,
            {TOPIC_HISTOGRAM: mechanism},
            {"noise_std": noise_std, "labels": list(self.terms.labels)},
            free=frozenset({"prompts"}),  # Counting reads no prompt.
        )

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Releases the histogram; see `TopicCounting`."""
        mechanism = mechanism_of(run.stage, TopicCounting)
        made = mechanism.release(run.private, run.public.required("topic_model"))
        return Release(value=StageRelease(facts=made.value.model_dump(mode="json")), cost=made.cost)


def _named(inputs: Mapping[str, str]) -> dict[str, Any]:
    """Names the topics in the ledger."""
    return {"inputs": dict(inputs)}
