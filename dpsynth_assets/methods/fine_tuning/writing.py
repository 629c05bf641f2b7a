"""Rows of a corpus from a fine-tuned generator: any number of them, at no further cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import GeneratorConfig
from dpsynth_assets.methods.fine_tuning.serving import DocumentWriter
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs
from dpsynth_assets.methods.rejection_sampling import (
    EVERY_ROW,
    RowFilter,
    round_seed,
    write_accepted,
)
from dpsynth_assets.methods.row_source import RowSampling
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.methods.text_form import FREE, TextForm
from dpsynth_assets.methods.topic_histogram import TopicHistogram

NO_TOPIC = -1
"""Topic of rows whose condition names none."""


def released_cells(public: PublicInputs, conditioning: Conditioning, rows: int) -> np.ndarray:
    """Draws label and topic of each row to be written from the released histogram.

    Returns:
        int64 (rows, 2): label index in [0, L) and topic in [0, K].

    Raises:
        ValueError: If there is no histogram, or its labels are not the declared ones.

    **Source** CTCL, section 3.4: rows in the proportions of the released histogram.
    """
    return released_histogram(public, conditioning.labels).sample_cells(rows, public.seed)


def equal_cells(conditioning: Conditioning, rows: int) -> np.ndarray:
    """Gives every label as many rows, of no topic: int64 (rows, 2), the second column -1."""
    labels = np.arange(rows) % len(conditioning.labels)
    return np.stack([labels, np.full(rows, NO_TOPIC)], axis=1)


def released_histogram(public: PublicInputs, labels: tuple[str, ...]) -> TopicHistogram:
    """Reads the cohort's topic histogram.

    Raises:
        ValueError: If there is none, or its labels are not the declared ones.
    """
    if public.topic_histogram is None:
        raise ValueError(
            "Expected the released topic histogram, which says what share of the rows each topic "
            "gets, got none. Declare topic_histogram in the dataset file."
        )
    histogram = TopicHistogram.from_json(public.topic_histogram)
    if histogram.labels != labels:
        raise ValueError(
            f"Expected a topic histogram of the {len(labels)} declared labels, got one of other "
            "labels. Release it again."
        )
    return histogram


def write_rows(
    writer: DocumentWriter,
    conditioning: Conditioning,
    cells: np.ndarray,
    config: GeneratorConfig,
    seed: int,
    progress: ProgressCallback,
    *,
    kept: RowFilter = EVERY_ROW,
    form: TextForm = FREE,
) -> SyntheticCorpus:
    """Samples one document for each cell, again until one is kept or the rounds are spent.

    So the shares of labels and topics stay those of the cells.

    **Source** CTCL, section 4.1.3: nucleus sampling with p = 0.95.
    """
    import polars as pl

    conditions = [conditioning.text(label, topic) for label, topic in cells.tolist()]

    def write(places: Sequence[int], round_number: int, progress: ProgressCallback) -> list[str]:
        texts = writer.generate(
            [conditions[place] for place in places],
            top_p=config.top_p,
            temperature=config.temperature,
            seed=round_seed(seed, round_number),
            max_new_tokens=config.max_document_tokens,
            batch_rows=config.rows_per_forward,
            progress=progress,
        )
        return list(map(form.read, texts))

    texts, judged = write_accepted(write, kept, len(cells), progress)
    frame = pl.DataFrame(
        {
            "text": texts,
            "label": [conditioning.labels[label] for label in cells[:, 0].tolist()],
            "topic": cells[:, 1],
        },
        schema={"text": pl.String, "label": pl.String, "topic": pl.Int64},
    ).drop_nulls("text")
    return SyntheticCorpus(rows=frame, facts={"rows": frame.height, **judged})


TOPICS_DRAWN = 4096
"""Cells from which topics of rows on demand are drawn, in the proportions of a corpus."""


@dataclass(frozen=True, kw_only=True)
class GeneratorRows:
    """Rows of chosen labels from a fine-tuned generator (a `RowSource`).

    Attributes:
        writer: Writes documents for conditions.
        known: How conditions are written.
        cells: int64 (M, 2): labels and topics in the proportions that a corpus has them.
        config: How rows are sampled, where a request does not say.
        form: What a row has to be.
        engine: What runs the weights.
        count: Counts the tokens of a text.
    """

    writer: DocumentWriter
    known: Conditioning
    cells: np.ndarray
    config: GeneratorConfig
    form: TextForm
    engine: str
    count: Callable[[str], int]

    @property
    def labels(self) -> tuple[str, ...]:
        """The declared labels."""
        return self.known.labels

    @property
    def longest(self) -> int:
        """Tokens of a row at most."""
        return self.config.max_document_tokens

    def tokens(self, text: str) -> int:
        """Counts the tokens of a text."""
        return self.count(text)

    def write(self, labels: Sequence[int], sampling: RowSampling, seed: int) -> list[str]:
        """Writes one row for each label, its topic drawn as those of the label's rows are."""
        rng = np.random.default_rng(seed)
        conditions = [self.known.text(label, self._topic(label, rng)) for label in labels]
        config = self.config
        texts = self.writer.generate(
            conditions,
            top_p=config.top_p if sampling.top_p is None else sampling.top_p,
            temperature=(
                config.temperature if sampling.temperature is None else sampling.temperature
            ),
            seed=seed,
            max_new_tokens=sampling.max_new_tokens or config.max_document_tokens,
            batch_rows=config.rows_per_forward,
            progress=None,
        )
        return list(map(self.form.read, texts))

    def _topic(self, label: int, rng: np.random.Generator) -> int:
        topics = self.cells[self.cells[:, 0] == label, 1]
        return int(rng.choice(topics)) if len(topics) else NO_TOPIC
