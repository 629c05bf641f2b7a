"""The engine over a decoder: prompts in passes, written by the one loop, on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.decoding.loop import WritingRules
from dpsynth_assets.models.decoding.opening import open_decoder
from dpsynth_assets.models.decoding.protocol import Decoder
from dpsynth_assets.models.decoding.writing import read_in_passes, written_tokens
from dpsynth_assets.models.engines.local_engine import LocalEngine, Vectors
from dpsynth_assets.models.engines.protocol import (
    Capability,
    EngineError,
    Pooling,
    Provenance,
    Sampling,
    ShareCallback,
)

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel


class DecoderEngine(LocalEngine):
    """Batches prompts of similar length, reads equal prompts once, drops finished rows.

    What it gives of a prompt or text is a function of it alone, bit for bit, where that is so of
    the decoder (`Decoder.is_exact`).

    Args:
        language_model: Weights, tokenizer and document format.
        kind: What decodes (`open_decoder`).
        batch_rows: Rows of one decoding pass at most.

    Raises:
        EngineError: The decoder cannot be opened; in one line.
    """

    def __init__(
        self, language_model: "LanguageModel", kind: str = "transformers", *, batch_rows: int = 64
    ) -> None:
        super().__init__(language_model)
        self._batch_rows = batch_rows
        with self._one_line_errors():
            self._decoder: Decoder | None = open_decoder(kind, language_model)

    @property
    def decoder(self) -> Decoder:
        """What decodes.

        Raises:
            EngineError: The engine was closed.
        """
        if self._decoder is None:
            raise EngineError("Expected an open engine, got one that was closed; open it again.")
        return self._decoder

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the decoder."""
        return self.decoder.capabilities

    def close(self) -> None:
        """Lets go of the weights; the engine is not used again."""
        self._decoder = None
        self.language_model.__dict__.pop("model", None)

    def _write(
        self,
        prompts: list[list[int]],
        limits: list[int],
        sampling: Sampling,
        vectors: Vectors,
        progress: ShareCallback | None,
    ) -> list[list[int]]:
        rules = WritingRules(self._end_token_ids, sampling.stop, self.language_model.decode)
        with self._one_line_errors():
            return written_tokens(
                self.decoder,
                prompts,
                limits,
                sampling,
                rules,
                batch_rows=self._batch_rows,
                added=vectors,
                text_of=self._text_of(sampling),
                progress=progress,
            )

    def _logits(self, prompts: list[list[int]], vectors: Vectors) -> np.ndarray:
        import torch

        logits = np.empty((len(prompts), self.language_model.vocabulary_size), dtype=np.float32)
        with self._one_line_errors():
            for rows, contexts, _ in read_in_passes(
                self.decoder,
                prompts,
                [1] * len(prompts),
                batch_rows=self._batch_rows,
                added=vectors,
            ):
                start = torch.zeros(len(rows), dtype=torch.long)
                logits[rows] = contexts.next_logits(start, start).cpu().numpy()
                del contexts
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
            return self.decoder.hidden_states(
                texts,
                layers,
                begin=begin,
                pooling=pooling,
                provenance=provenance,
                progress=progress,
            )

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Turns what torch and the decoder say into one line without any text."""
        import torch

        from dpsynth_assets.models.language_model import LanguageModelError

        try:
            yield
        except EngineError:
            raise
        except (torch.OutOfMemoryError, MemoryError):
            raise EngineError(self._memory_message()) from None
        except (ValueError, LanguageModelError) as error:
            raise EngineError(str(error).splitlines()[0]) from None
        except RuntimeError as error:
            if "memory" in str(error):
                raise EngineError(self._memory_message()) from None
            raise

    def _memory_message(self) -> str:
        return (
            f"{self.name} ran out of memory on {self.language_model.device} with batches of "
            f"{self._batch_rows} rows; lower batch_rows or max_new_tokens, or take another device."
        )
