"""Rows from a fine-tuned generator, run by the dataset's engine: any number at no further cost.

vLLM and transformers draw the same tokens from the same seeds: which of them writes a corpus
changes its speed, not (float rounding aside) its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from dpsynth_assets.datasets.engine import DEFAULT_DECODER, EngineSpec
from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import ROWS_PER_FORWARD, GeneratorConfig
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
from dpsynth_assets.models.conditional_generator import (
    ConditionalGenerator,
    load_conditional_generator,
)
from dpsynth_assets.models.engines import Engine, Provenance, Sampling
from dpsynth_assets.models.engines.opening import kind_for_folder, serving
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.prompt_templates import PromptTemplates

PACKED_DECODER = DEFAULT_DECODER
"""What writes where no engine can: the packed decoder of this process."""


class DocumentWriter(Protocol):
    """Writes documents for conditions: a generator itself, or one that an engine serves."""

    def generate(
        self,
        conditions: Sequence[str],
        *,
        top_p: float,
        temperature: float,
        seed: int,
        max_new_tokens: int,
        batch_rows: int,
        progress: ProgressCallback | None,
    ) -> list[str]:
        """Samples one document for each condition; see `ConditionalGenerator.generate`."""


@dataclass(frozen=True)
class GeneratorWeights(LanguageModel):
    """Released weights as an engine reads them.

    Attributes:
        end_token_id: The token that ends a document of the generator.
    """

    end_token_id: int = field(kw_only=True)


@dataclass(frozen=True)
class ServedGenerator:
    """A decoder-only generator whose weights an engine runs.

    Attributes:
        generator: Its conditions, tokens and bounds; its own weights are never read.
        engine: Serves the same folder.
        form: What a document has to be.
    """

    generator: ConditionalGenerator
    engine: Engine
    form: TextForm

    def generate(
        self,
        conditions: Sequence[str],
        *,
        top_p: float,
        temperature: float,
        seed: int,
        max_new_tokens: int,
        batch_rows: int,
        progress: ProgressCallback | None,
    ) -> list[str]:
        """Samples one document for each condition; as many at a time as the engine likes."""
        del batch_rows
        encoder, bound = self.generator.encoder, self.generator.max_condition_tokens
        known = encoder.distinct_conditions(conditions, bound)
        prompts = [known[text] for text in conditions]
        positions = getattr(self.generator.config, "max_position_embeddings", None)
        room = [max_new_tokens if positions is None else positions - len(ids) for ids in prompts]
        free = Sampling(
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=tuple(min(max_new_tokens, each) for each in room),
            seed=seed,
            stop=encoder.stop,
        )
        written = self.engine.generate(
            prompts,
            self.form.constrained(free),
            provenance=Provenance.RELEASED,
            progress=None if progress is None else _counted(progress, len(prompts)),
        )
        return [
            self.form.read(encoder.document_text(row.token_ids), ended=row.finished)
            for row in written
        ]


@contextmanager
def open_writer(
    folder: Path,
    engine: EngineSpec,
    *,
    device: str,
    batch_rows: int,
    templates: PromptTemplates | None = None,
    form: TextForm = FREE,
) -> Iterator[tuple[DocumentWriter, str]]:
    """Opens released weights for writing, and the name of what runs them; closed afterwards.

    An encoder-decoder is always run by the packed decoder of this process: vLLM 0.32 serves no such
    model. So are the weights of a dataset whose engine is an endpoint, which has only its own. A
    model that the exact decoder does not compute is run by transformers.

    Args:
        folder: The released folder.
        engine: The dataset's engine; its `model` is for other methods and not served here.
        device: Torch device of the packed decoder.
        batch_rows: Rows decoded together, unless the engine's own bound is declared.
        templates: Prompts that the weights were fine-tuned with; None: aspect lines.
        form: What a document has to be; the packed decoder does not know how.

    Raises:
        EngineError: The engine cannot be opened.
    """
    generator = load_conditional_generator(folder, device=device, templates=templates)
    if generator.has_encoder or engine.is_endpoint:
        yield generator, PACKED_DECODER
        return
    declared = "batch_rows" in engine.model_fields_set
    spec = engine.model_copy(
        update={
            "model": None,
            "kind": kind_for_folder(engine.kind, folder),
            **({} if declared else {"batch_rows": batch_rows}),
        }
    )
    weights = GeneratorWeights(
        source=str(folder),
        dtype=spec.dtype,
        device=device,
        end_token_id=generator.encoder.end_token_id,
    )
    with serving(spec, weights) as opened:
        yield ServedGenerator(generator, opened, form), spec.kind


def _counted(progress: ProgressCallback, rows: int) -> Callable[[float], None]:
    """An engine's progress as a method tells it."""
    return lambda share: progress(share, f"{round(share * rows)} of {rows} documents")


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
    histogram = TopicHistogram.model_validate(public.topic_histogram)
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
            batch_rows=ROWS_PER_FORWARD,
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
            batch_rows=ROWS_PER_FORWARD,
            progress=None,
        )
        return list(map(self.form.read, texts))

    def _topic(self, label: int, rng: np.random.Generator) -> int:
        topics = self.cells[self.cells[:, 0] == label, 1]
        return int(rng.choice(topics)) if len(topics) else NO_TOPIC
