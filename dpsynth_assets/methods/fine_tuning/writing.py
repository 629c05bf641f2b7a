"""Rows from a fine-tuned generator, run by the dataset's engine: any number at no further cost.

vLLM and transformers draw the same tokens from the same seeds: which of them writes a corpus
changes its speed, not (float rounding aside) its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.datasets.public_spec import DEFAULT_DECODER, EngineSpec
from dpsynth_assets.methods.capabilities import RowSampling, RowSource
from dpsynth_assets.methods.fine_tuning.config import ROWS_PER_FORWARD, GeneratorConfig
from dpsynth_assets.methods.fine_tuning.generators import NO_TOPIC, Conditioning
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs, silent
from dpsynth_assets.methods.rejection_sampling import (
    EVERY_ROW,
    RowFilter,
    accepted_rows,
    round_seed,
    write_accepted,
)
from dpsynth_assets.methods.shared_histograms import TopicHistogram
from dpsynth_assets.methods.stages import SyntheticCorpus
from dpsynth_assets.models.conditional_generator.generator import (
    ConditionalGenerator,
    load_conditional_generator,
)
from dpsynth_assets.models.engines.protocol import (
    Engine,
    Provenance,
    Sampling,
    kind_for_folder,
    serving,
)
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.models.row_rules import FREE, TextForm


@dataclass(frozen=True)
class GeneratorWeights(LanguageModel):
    """Released weights as an engine reads them.

    Attributes:
        end_token_id: The token that ends a document of the generator.
    """

    end_token_id: int = field(kw_only=True)


@dataclass(frozen=True, kw_only=True)
class DocumentWriter:
    """Writes documents for conditions: an engine runs the weights, or the packed decoder does.

    Attributes:
        generator: Its conditions, tokens and bounds; an engine reads its weights from the folder.
        config: How tokens are drawn.
        form: What a document has to be; the packed decoder does not know how.
        engine: Serves the same folder; None: the packed decoder of this process writes.
        kind: Name of what runs the weights.
    """

    generator: ConditionalGenerator
    config: GeneratorConfig
    form: TextForm = FREE
    engine: Engine | None = None
    kind: str = DEFAULT_DECODER

    def texts(
        self,
        conditions: Sequence[str],
        seed: int,
        progress: ProgressCallback = silent,
        **asked: Any,
    ) -> list[str]:
        """Samples one document for each condition.

        Args:
            conditions: N texts; repeated ones give different documents.
            seed: Of public randomness.
            progress: Told the share done.
            asked: What is drawn otherwise than the settings say, as fields of `Sampling`.

        Returns:
            N texts of the form, "" where none of it was written.
        """
        drawn = Sampling(
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            max_new_tokens=self.config.max_document_tokens,
            seed=seed,
        )
        drawn, count = replace(drawn, **asked), len(conditions)

        def told(share: float) -> None:
            progress(share, f"{round(share * count)} of {count} documents")

        if self.engine is None:
            texts = self.generator.generate(
                conditions, drawn, batch_rows=ROWS_PER_FORWARD, progress=told
            )
            return list(map(self.form.read, texts))
        encoder, bound = self.generator.encoder, self.generator.max_condition_tokens
        known = encoder.distinct_conditions(conditions, bound)
        prompts, most = [known[text] for text in conditions], max(drawn.limits(1))
        positions = getattr(self.generator.config, "max_position_embeddings", None)
        room = [most if positions is None else positions - len(ids) for ids in prompts]
        limits = tuple(min(most, each) for each in room)
        free = replace(drawn, max_new_tokens=limits, stop=encoder.stop)
        written = self.engine.generate(
            prompts, self.form.constrained(free), provenance=Provenance.RELEASED, progress=told
        )
        texts = [
            self.form.read(encoder.document_text(row.token_ids), ended=row.finished)
            for row in written
        ]
        return list(map(self.form.read, texts))


@contextmanager
def open_writer(
    folder: Path,
    engine: EngineSpec,
    config: GeneratorConfig,
    *,
    device: str,
    templates: PromptTemplates | None = None,
    form: TextForm = FREE,
) -> Iterator[DocumentWriter]:
    """Opens released weights for writing; closed afterwards.

    An encoder-decoder is always run by the packed decoder of this process: vLLM 0.32 serves no such
    model. So are the weights of a dataset whose engine is an endpoint, which has only its own. A
    model that the exact decoder does not compute is run by transformers.

    Args:
        folder: The released folder.
        engine: The dataset's engine; its `model` is for other methods and not served here.
        config: How tokens are drawn.
        device: Torch device of the packed decoder.
        templates: Prompts that the weights were fine-tuned with; None: aspect lines.
        form: What a document has to be.

    Raises:
        EngineError: The engine cannot be opened.
    """
    generator = load_conditional_generator(folder, device=device, templates=templates)
    writer = DocumentWriter(generator=generator, config=config, form=form)
    if generator.has_encoder or engine.is_endpoint:
        yield writer
        return
    declared = "batch_rows" in engine.model_fields_set
    spec = engine.model_copy(
        update={
            "model": None,
            "kind": kind_for_folder(engine.kind, folder),
            **({} if declared else {"batch_rows": ROWS_PER_FORWARD}),
        }
    )
    weights = GeneratorWeights(
        source=str(folder),
        dtype=spec.dtype,
        device=device,
        end_token_id=generator.encoder.end_token_id,
    )
    with serving(spec, weights) as opened:
        yield replace(writer, engine=opened, kind=spec.kind)


def equal_cells(conditioning: Conditioning, rows: int) -> np.ndarray:
    """Gives every label as many rows, of no topic: int64 (rows, 2), the second column -1."""
    labels = np.arange(rows) % len(conditioning.labels)
    return np.stack([labels, np.full(rows, NO_TOPIC)], axis=1)


def released_histogram(public: PublicInputs, labels: tuple[str, ...]) -> TopicHistogram:
    """Reads the cohort's topic histogram.

    Raises:
        ValueError: If there is none, or its labels are not the declared ones.
    """
    histogram = TopicHistogram.model_validate(public.required("topic_histogram"))
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
    seed: int,
    progress: ProgressCallback,
    *,
    kept: RowFilter = EVERY_ROW,
) -> SyntheticCorpus:
    """Samples one document for each cell, again until one is kept or the rounds are spent.

    So the shares of labels and topics stay those of the cells.

    **Source** CTCL, section 4.1.3: nucleus sampling with p = 0.95.
    """
    conditions = [conditioning.text(label, topic) for label, topic in cells.tolist()]

    def write(places: Sequence[int], round_number: int, progress: ProgressCallback) -> list[str]:
        asked = [conditions[place] for place in places]
        return writer.texts(asked, round_seed(seed, round_number), progress)

    texts, judged = write_accepted(write, kept, len(cells), progress)
    labels = [conditioning.labels[label] for label in cells[:, 0].tolist()]
    frame = accepted_rows(texts, label=labels, topic=cells[:, 1])
    return SyntheticCorpus(rows=frame, facts={"rows": frame.height, **judged})


TOPICS_DRAWN = 4096
"""Cells from which topics of rows on demand are drawn, in the proportions of a corpus."""


def rows_on_demand(
    writer: DocumentWriter, known: Conditioning, cells: np.ndarray, tokens: Callable[[str], int]
) -> RowSource:
    """Rows of chosen labels from a fine-tuned generator.

    Args:
        writer: Writes documents for conditions.
        known: How conditions are written.
        cells: int64 (M, 2): labels and topics in the proportions that a corpus has them; the topic
            of a row is drawn among those of its label.
        tokens: Counts the tokens of a text.
    """

    def write(labels: Sequence[int], sampling: RowSampling, seed: int) -> list[str]:
        rng, conditions = np.random.default_rng(seed), []
        for label in labels:
            topics = cells[cells[:, 0] == label, 1]
            topic = int(rng.choice(topics)) if len(topics) else NO_TOPIC
            conditions.append(known.text(label, topic))
        return writer.texts(conditions, seed, silent, **sampling.asked)

    longest = writer.config.max_document_tokens
    return RowSource(
        labels=known.labels, engine=writer.kind, longest=longest, write=write, tokens=tokens
    )
