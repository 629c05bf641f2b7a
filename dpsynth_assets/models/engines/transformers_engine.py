"""Transformers as an engine: batched decoding on the processor or a CUDA device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.decoding import PackedContexts
from dpsynth_assets.models.decoding.token_draws import uniforms
from dpsynth_assets.models.engines.decoding_loop import EndRules, decode_rows
from dpsynth_assets.models.engines.hidden_states import pooled_states
from dpsynth_assets.models.engines.local_engine import LocalEngine, Vectors, passes_of
from dpsynth_assets.models.engines.protocol import (
    EngineError,
    Pooling,
    Provenance,
    Sampling,
    ShareCallback,
)
from dpsynth_assets.models.engines.residual_stream import adding_to_stream

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.language_model import LanguageModel

_ROWS_PER_PREFILL = 16
_TOKENS_PER_PASS = {"cpu": 2048, "cuda": 16384}


class TransformersEngine(LocalEngine):
    """Batches prompts of similar length, reads equal prompts once, drops finished rows.

    Args:
        language_model: Weights, tokenizer and document format.
        batch_rows: Rows of one decoding pass at most.
    """

    def __init__(self, language_model: "LanguageModel", *, batch_rows: int = 64) -> None:
        super().__init__(language_model)
        self._batch_rows = batch_rows

    def close(self) -> None:
        """Frees the weights; the language model would read them again."""
        self.language_model.__dict__.pop("model", None)

    @property
    def _model(self) -> Any:
        return self.language_model.model

    @property
    def _device(self) -> str:
        return "cuda" if self.language_model.device.startswith("cuda") else "cpu"

    def _write(
        self,
        prompts: list[list[int]],
        limits: list[int],
        sampling: Sampling,
        vectors: Vectors,
        progress: ShareCallback | None,
    ) -> list[list[int]]:
        rules = EndRules(self._end_token_ids, sampling.stop, self.language_model.decode)
        written: dict[int, list[int]] = {}
        for rows in passes_of(prompts, self._batch_rows):
            bounds = [limits[row] for row in rows]
            texts = self._constrained(rows, sampling)
            with self._one_line_errors():
                contexts = self._contexts([prompts[row] for row in rows], max(bounds))
                uniform = self._uniform(sampling.seed, rows, max(bounds))
                with adding_to_stream(self._model, self._tensors(vectors)):
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
            with self._one_line_errors():
                contexts = self._contexts([prompts[row] for row in rows], 1)
                with adding_to_stream(self._model, self._tensors(vectors)):
                    logits[rows] = contexts.next_logits(start, start).cpu().numpy()
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
        with self._one_line_errors():
            return pooled_states(
                self._model,
                texts,
                layers,
                begin=begin,
                pad_token_id=self.language_model.pad_token_id,
                pooling=pooling,
                tokens_per_pass=_TOKENS_PER_PASS[self._device],
                provenance=provenance,
                progress=progress,
            )

    def _contexts(self, prompts: list[list[int]], max_new_tokens: int) -> PackedContexts:
        """Reads each different prompt once; rows of equal prompts begin as copies."""
        import torch

        place = {ids: index for index, ids in enumerate(dict.fromkeys(map(tuple, prompts)))}
        contexts = PackedContexts(
            self._model,
            list(place),
            prompt_columns=max(map(len, place)),
            max_new_tokens=max_new_tokens,
            pad_token_id=self.language_model.pad_token_id,
            rows_per_prefill=min(len(place), _ROWS_PER_PREFILL),
        )
        contexts.keep(torch.tensor([place[tuple(prompt)] for prompt in prompts]))
        return contexts

    def _uniform(self, seed: int, rows: list[int], draws: int) -> "torch.Tensor":
        import torch

        return torch.from_numpy(uniforms(seed, rows, draws)).to(self._model.device)

    def _tensors(self, vectors: Vectors) -> "dict[int, torch.Tensor]":
        import torch

        parameter = next(self._model.parameters())
        return {
            layer: torch.from_numpy(vector).to(parameter.device, parameter.dtype)
            for layer, vector in vectors.items()
        }

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Turns what torch and the decoding engine say into one line without any text."""
        import torch

        try:
            yield
        except (torch.OutOfMemoryError, MemoryError):
            raise EngineError(self._memory_message()) from None
        except RuntimeError as error:
            if "memory" in str(error):
                raise EngineError(self._memory_message()) from None
            raise
        except ValueError as error:
            raise EngineError(str(error).splitlines()[0]) from None

    def _memory_message(self) -> str:
        return (
            f"{self.name} ran out of memory on {self.language_model.device} with batches of "
            f"{self._batch_rows} rows; lower batch_rows or max_new_tokens, or take another device."
        )
