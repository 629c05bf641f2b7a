"""Engines that decode in passes of rows, with contexts of a model in this process."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.models.decoding.token_draws import uniforms
from dpsynth_assets.models.engines.decoding_loop import Contexts, EndRules, decode_rows
from dpsynth_assets.models.engines.local_engine import LocalEngine, Vectors
from dpsynth_assets.models.engines.protocol import Sampling, ShareCallback

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.models.language_model import LanguageModel


class EngineInPasses(LocalEngine):
    """Batches prompts of similar length, reads equal prompts once, drops finished rows.

    Args:
        language_model: Weights, tokenizer and document format.
        batch_rows: Rows of one decoding pass at most.
    """

    def __init__(self, language_model: "LanguageModel", *, batch_rows: int = 64) -> None:
        super().__init__(language_model)
        self._batch_rows = batch_rows

    @abstractmethod
    def _opened(
        self, prompts: list[tuple[int, ...]], max_new_tokens: int, vectors: Vectors
    ) -> AbstractContextManager[Contexts]:
        """Contexts of different prompts, read, whose next tokens are steered in the block."""

    @property
    def _device(self) -> "str | torch.device":
        """Where logits lie."""
        return "cpu"

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
        for rows in self._passes(prompts):
            bounds = [limits[row] for row in rows]
            texts = self._constrained(rows, sampling)
            with self._reading(prompts, rows, max(bounds), vectors) as contexts:
                drawn = torch.from_numpy(uniforms(sampling.seed, rows, max(bounds)))
                drawn = drawn.to(self._device)
                tokens = decode_rows(contexts, bounds, sampling, drawn, rules, texts)
            written |= dict(zip(rows, tokens, strict=True))
            if progress is not None:
                progress(len(written) / len(prompts))
        return [written[row] for row in range(len(prompts))]

    def _logits(self, prompts: list[list[int]], vectors: Vectors) -> np.ndarray:
        import torch

        logits = np.empty((len(prompts), self.language_model.vocabulary_size), dtype=np.float32)
        for rows in self._passes(prompts):
            start = torch.zeros(len(rows), dtype=torch.long)
            with self._reading(prompts, rows, 1, vectors) as contexts:
                logits[rows] = contexts.next_logits(start, start).cpu().numpy()
        return logits

    def _passes(self, prompts: list[list[int]]) -> Iterator[list[int]]:
        """Rows of each pass: prompts of similar length together, equal ones side by side."""
        order = iter(sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), prompts[row])))
        while rows := list(islice(order, self._batch_rows)):
            yield rows

    @contextmanager
    def _reading(
        self, prompts: list[list[int]], rows: list[int], max_new_tokens: int, vectors: Vectors
    ) -> Iterator[Contexts]:
        """Reads each different prompt once; rows of equal prompts begin as copies."""
        import torch

        own = [tuple(prompts[row]) for row in rows]
        place = {prompt: index for index, prompt in enumerate(dict.fromkeys(own))}
        with self._opened(list(place), max_new_tokens, vectors) as contexts:
            contexts.keep(torch.tensor([place[prompt] for prompt in own]))
            yield contexts
