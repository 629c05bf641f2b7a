"""Prompts around every text of EPSVec, and the model's hidden states of these texts.

The same scaffold (instructions, fixed shots, an opened document) stands before candidates,
negatives, private records and rows, so that their states and texts differ by what is written, not
by what is asked. Its words are those of every other method's prompt (EPSVec's own are in appendices
B.3 to B.5 of the paper).

Letters: Y labels, N texts, L layers, d width of the residual stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.models.engines.decoder_engine import LocalEngine
from dpsynth_assets.models.engines.protocol import (
    Capability,
    Engine,
    EngineError,
    Generation,
    Provenance,
    ShareCallback,
)
from dpsynth_assets.models.prompt_templates import GAP, PromptTemplates, prompted
from dpsynth_assets.models.row_rules import FREE, TextForm

if TYPE_CHECKING:
    from dpsynth_assets.models.engines.protocol import Prompt


TextsByLabel = tuple[tuple[str, ...], ...]
"""Y lists of texts, in the order of the declared labels."""


@dataclass(frozen=True)
class Scaffold:
    """Writes prompts and reads texts of one method and engine; everything in it is public.

    Attributes:
        label_texts: How each label is written.
        max_tokens: Texts are cut to this many tokens, those of a prompt too.
        codec: The engine's model, with its templates; None for an engine without tokens.
        templates: What prompts are written in where there is no codec: a plan asks for them.
        stop: Texts that end a document.
        form: What a document has to be.
    """

    label_texts: tuple[str, ...]
    max_tokens: int
    codec: Any | None
    templates: PromptTemplates | None
    stop: tuple[str, ...] = ()
    form: TextForm = FREE

    def prompt(self, label: int, shots: Sequence[str]) -> "Prompt":
        """The prompt after which the model writes one more text of a label."""
        text = self.label_texts[label]
        if self.codec is not None:
            ids: list[int] = self.codec.prompt_ids(text, list(shots), self.max_tokens)
            return ids
        return _as_text(cast("PromptTemplates", self.templates), text, shots)

    def prefix(self, label: int, shots: Sequence[str]) -> list[int]:
        """Tokens before a text whose states are read, the model's begin token left off."""
        codec: Any = self.codec
        ids = list(codec.prompt_ids(self.label_texts[label], shots, self.max_tokens))
        begin = codec.begin_token_id
        return ids[1:] if ids and ids[0] == begin else ids

    def text_ids(self, text: str) -> list[int]:
        """A text's own tokens, cut; none for a text without a word."""
        codec: Any = self.codec
        return list(codec.encode(text))[: self.max_tokens] if text.strip() else []

    def read(self, generation: Generation) -> str:
        """The text that was written, without what closes it; blank where none of the form was."""
        text: str = generation.text
        if self.codec is not None and generation.token_ids:
            text = self.codec.read_text(list(generation.token_ids))[0]
        return self.form.read(text.strip(), ended=generation.finished)


def scaffold_of(config: EpsVecConfig, terms: CohortTerms, engine: Engine) -> Scaffold:
    """The scaffold of a cohort, in the tokens of the engine's model.

    Raises:
        ValueError: The templates do not fit the model (no chat template, unknown end token).
    """
    templates = terms.prompts
    model = getattr(engine, "language_model", None)
    return Scaffold(
        label_texts=terms.label_texts,
        max_tokens=config.max_document_tokens,
        codec=None if model is None else prompted(model, templates),
        templates=templates,
        stop=("\n",) if templates is not None and templates.ends_with_line else (),
        form=terms.form(),
    )


def _as_text(templates: PromptTemplates, label_text: str, shots: Sequence[str]) -> str:
    """A prompt as text; shots stand in its gaps, each once."""
    opening, asked = templates.opening(label_text), templates.asked(label_text)
    before = f"{asked}\n\n" if asked else ""
    if not shots:
        return before + templates.public_prompt_text(label_text) + opening
    parts = templates.private_text(label_text, len(shots)).split(GAP)
    pairs = zip(parts, [*shots, ""], strict=True)
    return before + "".join(part + shot for part, shot in pairs) + opening


BLOCK_START = 18 / 32
"""Begin of EPSVec's block of layers in Llama-3.1-8B, as a share of the depth."""

BLOCK_SHARE = 4 / 32
"""Its four layers, as a share of the depth."""


def default_layers(layers: int) -> tuple[int, ...]:
    """The block of decoder layers at the depth of 18 to 21 of 32; at least one.

    **Source** EPSVec, section 5.1 and Table 5.
    """
    first = int(layers * BLOCK_START)
    return tuple(range(first, min(layers, first + max(1, round(layers * BLOCK_SHARE)))))


def require_private_engine(engine: Engine) -> None:
    """Refuses an engine that private text would leave this machine for.

    Raises:
        EngineError: As said, or the engine does not tell hidden states.
    """
    if {Capability.PRIVATE_TEXT, Capability.HIDDEN_STATES} <= engine.capabilities:
        return
    raise EngineError(
        f"Expected an engine that runs {engine.name} on this machine and gives hidden states, got "
        "one that does not: private text never leaves the machine. Set engine.kind to "
        "transformers or vllm."
    )


@dataclass(frozen=True)
class StateReader:
    """Reads mean states of texts behind the prompt of their label.

    Attributes:
        engine: Runs the model on this machine.
        scaffold: Writes the prompts.
        shots: Fixed shots of each label.
        layers: L layers, ascending.
    """

    engine: LocalEngine
    scaffold: Scaffold
    shots: TextsByLabel
    layers: tuple[int, ...]

    def read(
        self,
        label: int,
        texts: Sequence[str],
        progress: ShareCallback | None = None,
        *,
        provenance: Provenance = Provenance.PRIVATE,
    ) -> np.ndarray:
        """Mean states over each text's own tokens, (N, L, d) float64; one pass a text.

        A text without a word gives zeros.

        **Privacy** A private row is a function of its own text and public values, bit for bit: the
        engine reads it alone. The prompt consists of public words and released shots.

        **Source** EPSVec, equation 1 and appendix B.4.
        """
        prefix = self.scaffold.prefix(label, self.shots[label])
        self._require_room(len(prefix))
        states = self.engine.hidden_states(
            list(map(self.scaffold.text_ids, texts)),
            self.layers,
            behind=prefix,
            provenance=provenance,
            progress=progress,
        )
        return np.stack([states[layer] for layer in self.layers], axis=1).astype(np.float64)

    def _require_room(self, prefix: int) -> None:
        """A text that the engine cut would spoil the subtraction."""
        room = getattr(self.engine, "positions", 2**31) - 2
        needed = prefix + self.scaffold.max_tokens
        if needed > room:
            raise EngineError(
                f"Expected prompt and text within {room} tokens of {self.engine.name}, got up to "
                f"{needed}. Lower max_document_tokens or shots."
            )


def open_reader(
    engine: LocalEngine,
    config: EpsVecConfig,
    terms: CohortTerms,
    shots: TextsByLabel,
    layers: tuple[int, ...] | None,
) -> StateReader:
    """Reads states in an engine that private text may be given to.

    Args:
        engine: Open, here or in a worker.
        config: Settings.
        terms: Declared facts.
        shots: Fixed shots of the prompts.
        layers: Layers to be read; None: the default block of the engine's model.

    Raises:
        EngineError: The engine gives no hidden states.
    """
    require_private_engine(engine)
    return StateReader(
        engine=engine,
        scaffold=scaffold_of(config, terms, engine),
        shots=shots,
        layers=default_layers(engine.layers) if layers is None else tuple(sorted(layers)),
    )
