"""States of texts inside the model, read behind the scaffold that rows are written behind.

Letters: N texts, L layers, d width of the residual stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.methods.epsvec.candidates import TextsByLabel
from dpsynth_assets.methods.epsvec.prompts import Scaffold
from dpsynth_assets.models.engines import Capability, Engine, EngineError, Provenance
from dpsynth_assets.models.engines.protocol import ShareCallback

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
        max_tokens: Texts are cut to this.
    """

    engine: Engine
    scaffold: Scaffold
    shots: TextsByLabel
    layers: tuple[int, ...]
    max_tokens: int

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
            [self.scaffold.text_ids(text, self.max_tokens) for text in texts],
            self.layers,
            "mean",
            behind=prefix,
            provenance=provenance,
            progress=progress,
        )
        return np.stack([states[layer] for layer in self.layers], axis=1).astype(np.float64)

    def _require_room(self, prefix: int) -> None:
        """A text that the engine cut would spoil the subtraction."""
        room = getattr(self.engine, "positions", 2**31) - 2
        if prefix + self.max_tokens > room:
            raise EngineError(
                f"Expected prompt and text within {room} tokens of {self.engine.name}, got up to "
                f"{prefix + self.max_tokens}. Lower max_document_tokens or shots."
            )


def reader_layers(layers: tuple[int, ...] | None, engine: Engine) -> tuple[int, ...]:
    """Declared layers in ascending order, or the default block of the engine's model.

    Raises:
        EngineError: A layer that the model does not have.
    """
    chosen = default_layers(engine.layers) if layers is None else tuple(sorted(layers))
    if chosen[-1] >= engine.layers:
        raise EngineError(
            f"Expected layers in [0, {engine.layers}) of {engine.name}, got {list(chosen)}."
        )
    return chosen
