"""vLLM as an engine: continuous batching, paged and shared prompt caches, tensor parallelism.

vLLM loads its own copy of the weights; the `LanguageModel` lends its tokenizer and configuration.
The engine core runs in this process (workers have their own when several devices share the model),
logs errors only, counts nothing and reports no usage: prompts do not reach a log.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.decoding.protocol import StateReading
from dpsynth_assets.models.engines.decoder_engine import LocalEngine, Vectors
from dpsynth_assets.models.engines.protocol import EngineError, Sampling, ShareCallback
from dpsynth_assets.models.vllm_decoder.engine_worker import DOCUMENT, ResidualStreamWorker
from dpsynth_assets.models.vllm_decoder.lockstep import VllmDecoderError
from dpsynth_assets.models.vllm_decoder.process import opened_llm, stop

if TYPE_CHECKING:
    from dpsynth_assets.datasets.public_spec import EngineSpec
    from dpsynth_assets.models.language_model import LanguageModel


class VllmEngine(LocalEngine):
    """Serves prompts by vLLM 0.32.

    Args:
        language_model: Source of the weights, tokenizer and document format.
        spec: Prompts in flight at most, devices, and the share of their memory.
        batch_tokens: Tokens of one pass at most, >= batch_rows; longer prompts are read in chunks.

    Raises:
        EngineError: vLLM is not installed, or cannot load the model or its cache.
    """

    def __init__(
        self,
        language_model: "LanguageModel",
        spec: "EngineSpec",
        *,
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__(language_model)
        try:
            self._llm = opened_llm(
                language_model,
                max_model_len=self.positions if self.positions < 2**31 else None,
                max_num_seqs=spec.batch_rows,
                max_num_batched_tokens=batch_tokens,
                tensor_parallel_size=spec.tensor_parallel_size,
                gpu_memory_utilization=spec.memory_fraction,
                cache_gib=spec.cache_gib,
                worker_extension_cls=f"{__package__}.engine_worker.{ResidualStreamWorker.__name__}",
            )
        except VllmDecoderError as error:
            raise EngineError(str(error)) from None

    def close(self) -> None:
        """Stops the engine core and its workers and frees their memory."""
        stop(self._llm)
        del self._llm

    def _write(
        self, prompts: list[list[int]], sampling: Sampling, progress: ShareCallback | None
    ) -> list[list[int]]:
        from vllm import SamplingParams

        parameters = [
            SamplingParams(
                temperature=0,  # the worker draws
                max_tokens=limit,
                stop=list(sampling.stop) or None,
                stop_token_ids=list(self._end_token_ids),
                ignore_eos=True,
                detokenize=bool(sampling.stop),
                extra_args={DOCUMENT: row},
            )
            for row, limit in enumerate(sampling.limits(len(prompts)))
        ]
        draws = sampling.temperature or sampling.json_schema is not None
        model = self.language_model
        drawing = ("dpsynth_draw", sampling, model.source, model.end_token_id) if draws else ()
        with self._serving(self._vectors, *drawing):
            outputs = self._run(prompts, parameters, progress)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _hidden_states(
        self, texts: list[list[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        """Private texts are served one after another: vLLM batches all requests that it has."""
        kept = [index for index, text in enumerate(texts) if text]
        prompts = [[*reading.begin, *texts[index]] for index in kept]
        layers = reading.layers
        with self._serving({}, "dpsynth_read_states", layers, len(reading.begin)):
            parameters = self._one_token(len(kept))
            together = len(kept) if reading.shares_passes else 1
            for start in range(0, len(kept), max(1, together)):
                part = slice(start, start + together)  # one prompt: every step holds it alone
                told = reading.progress if reading.shares_passes else None
                self._run(prompts[part], parameters[part], told)
                reading.told(min(1.0, part.stop / len(kept)))
            states = self._call("dpsynth_take_states")
        self._llm.reset_prefix_cache()  # the texts may be private
        result = {layer: np.zeros((len(texts), self.width), dtype=np.float32) for layer in layers}
        for place, layer in enumerate(layers):
            for row, index in enumerate(kept):
                result[layer][index] = states[row][place]
        return result

    def _one_token(self, count: int) -> list[Any]:
        """Requests that only read their prompt: all of it, not what the cache has of it."""
        from vllm import SamplingParams

        return [
            SamplingParams(
                max_tokens=1,
                temperature=0,
                detokenize=False,
                skip_reading_prefix_cache=True,
                extra_args={DOCUMENT: index},
            )
            for index in range(count)
        ]

    def _run(
        self,
        prompts: list[list[int]],
        parameters: list[Any],
        progress: ShareCallback | None = None,
    ) -> list[Any]:
        from vllm import TokensPrompt

        if not prompts:
            return []
        requests = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        try:
            bar = False if progress is None else _bar(progress)
            return self._llm.generate(requests, parameters, use_tqdm=bar)
        except Exception as error:  # noqa: BLE001 (any error: its text may hold a prompt's)
            kind = type(error).__name__
            raise EngineError(
                f"{self.name} in vLLM stopped with {kind}; lower batch_rows or max_new_tokens, or "
                "give it more memory."
            ) from None

    @contextmanager
    def _serving(self, vectors: Vectors, *service: Any) -> Iterator[None]:
        """Sets the worker up for one call: steering, and one of its other services.

        Steered calls begin and end with an empty prompt cache: new tokens' part of it is steered.
        """
        try:
            if vectors:
                self._llm.reset_prefix_cache()
                self._call("dpsynth_steer", dict(vectors))
            if service:
                self._call(*service)
            yield
        finally:
            self._call("dpsynth_release")
            if vectors:
                self._llm.reset_prefix_cache()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of all workers; every one has the whole stream, the first one answers."""
        return self._llm.collective_rpc(method, args=arguments)[0]


def _bar(progress: ShareCallback) -> Any:
    """Stand-in for vLLM's progress bar: reports the share of prompts done and draws nothing."""
    from tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, iterable: Any = None, **options: Any) -> None:
            super().__init__(iterable, **options, file=StringIO())

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self.iterable is None:  # vLLM's other bar runs over the requests as they enter
                progress(self.n / self.total)
            return shown

    return Bar
