"""The exact decoder as an engine: on processors, faster than float32 and the same bit for bit.

What a prompt gives, and a text's hidden states, are functions of it alone: other prompts of a call,
their order and how calls are cut into passes change no bit.
"""

from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.decoding.token_draws import uniforms
from dpsynth_assets.models.engines.decoding_loop import EndRules, decode_rows
from dpsynth_assets.models.engines.local_engine import LocalEngine, Vectors, passes_of
from dpsynth_assets.models.engines.protocol import (
    EngineError,
    Pooling,
    Provenance,
    Sampling,
    ShareCallback,
)
from dpsynth_assets.models.exact_decoder import ExactContexts, ExactDecoder, ExactDecoderError
from dpsynth_assets.models.exact_decoder.opening import opened_decoder
from dpsynth_assets.models.exact_decoder.reading import pooled_streams

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel


class ExactEngine(LocalEngine):
    """Batches prompts of similar length, reads equal prompts once, drops finished rows.

    Args:
        language_model: A folder with a Llama-shaped model, and its tokenizer.
        batch_rows: Rows of one decoding pass at most.

    Raises:
        EngineError: The model is not Llama-shaped, or not in a folder with one safetensors file.
    """

    def __init__(self, language_model: "LanguageModel", *, batch_rows: int = 64) -> None:
        super().__init__(language_model)
        self._batch_rows = batch_rows
        try:
            self._decoder: ExactDecoder | None = opened_decoder(
                language_model.source, language_model.encode
            )
        except ExactDecoderError as error:
            raise EngineError(str(error)) from None

    def close(self) -> None:
        """Lets go of the weights; the engine is not used again."""
        self._decoder = None

    def _write(
        self,
        prompts: list[list[int]],
        limits: list[int],
        sampling: Sampling,
        vectors: Vectors,
        progress: ShareCallback | None,
    ) -> list[list[int]]:
        import torch

        rules = EndRules(self._end_token_ids, sampling.stop, self.language_model.decode)
        written: dict[int, list[int]] = {}
        for rows in passes_of(prompts, self._batch_rows):
            bounds = [limits[row] for row in rows]
            contexts = self._contexts([prompts[row] for row in rows], max(bounds), vectors)
            texts = self._constrained(rows, sampling)
            uniform = torch.from_numpy(uniforms(sampling.seed, rows, max(bounds)))
            tokens = decode_rows(contexts, bounds, sampling, uniform, rules, texts)
            written |= dict(zip(rows, tokens, strict=True))
            if progress is not None:
                progress(len(written) / len(prompts))
        return [written[row] for row in range(len(prompts))]

    def _logits(self, prompts: list[list[int]], vectors: Vectors) -> np.ndarray:
        import torch

        logits = np.empty((len(prompts), self.language_model.vocabulary_size), dtype=np.float32)
        for rows in passes_of(prompts, self._batch_rows):
            start = torch.zeros(len(rows), dtype=torch.long)
            contexts = self._contexts([prompts[row] for row in rows], 1, vectors)
            logits[rows] = contexts.next_logits(start, start).numpy()
        return logits

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
            self._opened,
            texts,
            layers,
            begin=begin,
            last_only=pooling == "last",
            progress=progress,
        )

    @property
    def _opened(self) -> ExactDecoder:
        if self._decoder is None:
            raise EngineError("Expected an open engine, got one that was closed; open it again.")
        return self._decoder

    def _contexts(
        self, prompts: list[list[int]], max_new_tokens: int, vectors: Vectors
    ) -> ExactContexts:
        """Reads each different prompt once; rows of equal prompts begin as copies."""
        import torch

        place = {ids: index for index, ids in enumerate(dict.fromkeys(map(tuple, prompts)))}
        added: dict[int, torch.Tensor] = {
            layer: torch.from_numpy(vector) for layer, vector in vectors.items()
        }
        contexts = ExactContexts(
            self._opened,
            list(place),
            prompt_columns=max(map(len, place)),
            max_new_tokens=max_new_tokens,
            added=added,
        )
        contexts.keep(torch.tensor([place[tuple(prompt)] for prompt in prompts]))
        return contexts
