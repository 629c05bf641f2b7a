"""The exact decoder as an engine: on processors, faster than float32 and the same bit for bit.

What a prompt gives, and a text's hidden states, are functions of it alone: other prompts of a call,
their order and how calls are cut into passes change no bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.engines.local_engine import Vectors
from dpsynth_assets.models.engines.passes import EngineInPasses
from dpsynth_assets.models.engines.protocol import (
    EngineError,
    Pooling,
    Provenance,
    ShareCallback,
)
from dpsynth_assets.models.exact_decoder import ExactContexts, ExactDecoder, ExactDecoderError
from dpsynth_assets.models.exact_decoder.opening import opened_decoder
from dpsynth_assets.models.exact_decoder.reading import pooled_streams

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel


class ExactEngine(EngineInPasses):
    """The exact decoder, opened.

    Args:
        language_model: A folder with a Llama-shaped model, and its tokenizer.
        batch_rows: Rows of one decoding pass at most.

    Raises:
        EngineError: The model is not Llama-shaped, or not in a folder with one safetensors file.
    """

    def __init__(self, language_model: "LanguageModel", *, batch_rows: int = 64) -> None:
        super().__init__(language_model, batch_rows=batch_rows)
        try:
            self._decoder: ExactDecoder | None = opened_decoder(
                language_model.source, language_model.encode
            )
        except ExactDecoderError as error:
            raise EngineError(str(error)) from None

    def close(self) -> None:
        """Lets go of the weights; the engine is not used again."""
        self._decoder = None

    def _hidden_states(
        self,
        texts: list[list[int]],
        begin: list[int],
        layers: tuple[int, ...],
        pooling: Pooling,
        provenance: Provenance,
        progress: ShareCallback | None,
    ) -> dict[int, np.ndarray]:
        del provenance  # a text's states are a function of it alone, whatever shares its pass
        return pooled_streams(
            self._open_decoder,
            texts,
            layers,
            begin=begin,
            last_only=pooling == "last",
            progress=progress,
        )

    @property
    def _open_decoder(self) -> ExactDecoder:
        if self._decoder is None:
            raise EngineError("Expected an open engine, got one that was closed; open it again.")
        return self._decoder

    @contextmanager
    def _opened(
        self, prompts: list[tuple[int, ...]], max_new_tokens: int, vectors: Vectors
    ) -> Iterator[ExactContexts]:
        import torch

        yield ExactContexts(
            self._open_decoder,
            prompts,
            prompt_columns=max(map(len, prompts)),
            max_new_tokens=max_new_tokens,
            added={layer: torch.from_numpy(vector) for layer, vector in vectors.items()},
        )
