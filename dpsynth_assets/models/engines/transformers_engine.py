"""Transformers as an engine: batched decoding on the processor or a CUDA device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.decoding import PackedContexts
from dpsynth_assets.models.engines.hidden_states import pooled_states
from dpsynth_assets.models.engines.local_engine import Vectors
from dpsynth_assets.models.engines.passes import EngineInPasses
from dpsynth_assets.models.engines.protocol import (
    EngineError,
    Pooling,
    Provenance,
    ShareCallback,
)
from dpsynth_assets.models.engines.residual_stream import adding_to_stream

if TYPE_CHECKING:
    import torch


_ROWS_PER_PREFILL = 16
_TOKENS_PER_PASS = {"cpu": 2048, "cuda": 16384}


class TransformersEngine(EngineInPasses):
    """Weights that transformers reads, on the processor or a CUDA device."""

    def close(self) -> None:
        """Frees the weights; the language model would read them again."""
        self.language_model.__dict__.pop("model", None)

    @property
    def _model(self) -> Any:
        return self.language_model.model

    @property
    def _device(self) -> "torch.device":
        device: torch.device = self._model.device
        return device

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
                tokens_per_pass=_TOKENS_PER_PASS[self._device.type],
                provenance=provenance,
                progress=progress,
            )

    @contextmanager
    def _opened(
        self, prompts: list[tuple[int, ...]], max_new_tokens: int, vectors: Vectors
    ) -> Iterator[PackedContexts]:
        with self._one_line_errors():
            contexts = PackedContexts(
                self._model,
                prompts,
                prompt_columns=max(map(len, prompts)),
                max_new_tokens=max_new_tokens,
                pad_token_id=self.language_model.pad_token_id,
                rows_per_prefill=min(len(prompts), _ROWS_PER_PREFILL),
            )
            with adding_to_stream(self._model, self._tensors(vectors)):
                yield contexts

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
