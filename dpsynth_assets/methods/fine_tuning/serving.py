"""Released weights served by the dataset's engine, so that rows are written as fast as it can.

vLLM and transformers draw the same tokens from the same seeds: which of them writes a corpus
changes its speed, not (float rounding aside) its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dpsynth_assets.datasets.engine import DEFAULT_DECODER, EngineSpec
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.methods.text_form import FREE, TextForm
from dpsynth_assets.models.conditional_generator import (
    ConditionalGenerator,
    load_conditional_generator,
)
from dpsynth_assets.models.decoding.opening import kind_for_folder
from dpsynth_assets.models.document_format import PLAIN_PT, DocumentFormat
from dpsynth_assets.models.engines import Engine, Provenance, Sampling
from dpsynth_assets.models.engines.opening import serving
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

    @property
    def document_format(self) -> DocumentFormat:  # type: ignore[override]
        """No fences: a document may contain one."""
        return PLAIN_PT


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
