"""A transformers model as a decoder: prompts cached once, documents continued and restarted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dpsynth_assets.models.decoding.protocol import (
    COUNTS,
    Decoder,
    Reading,
    StateReading,
    attention_limit,
    prefix_groups,
)
from dpsynth_assets.models.engines.protocol import Capability
from dpsynth_assets.models.transformers_decoder.cached_attention import (
    RowwiseCache,
    attention_masks,
    group_queries,
)
from dpsynth_assets.models.transformers_decoder.cuda_kernels import fuse_norms
from dpsynth_assets.models.transformers_decoder.memory import (
    ROW_MULTIPLE,
    filled_up,
    peak_bytes,
    room_on,
    rows_within,
    seen_columns,
)
from dpsynth_assets.models.transformers_decoder.residual_stream import (
    adding_to_stream,
    pooled_states,
)

Pass = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(tokens (R,), columns (R,), visible columns) -> logits (R, V)."""

_WARM_UP_PASSES = 2


class _Captured(NamedTuple):
    """A graph and the buffers it reads and writes."""

    graph: Any
    tokens: torch.Tensor
    columns: torch.Tensor
    logits: torch.Tensor


class CapturedPasses:
    """Runs a decoding pass, captured once for each number of rows and of visible columns.

    All graphs share one memory pool and write one tensor of logits, which last until the next
    pass only. A pass that cannot be captured (a model that reads a value back to the host) runs as
    it is from then on.
    """

    def __init__(self) -> None:
        """Captures nothing yet."""
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._pool: Any = None
        self._logits: torch.Tensor | None = None
        self.refused: str | None = None

    def __call__(
        self, run: Pass, tokens: torch.Tensor, columns: torch.Tensor, visible: int
    ) -> torch.Tensor:
        """Runs a pass, always the same; other arguments and the result are those of `Pass`.

        Args:
            run: Must write the same cache columns however often it runs with the same inputs. It is
                not kept: contexts that refer to themselves would hold their cache until a
                collection of garbage, and a card has room for few.
            tokens: See `Pass`.
            columns: See `Pass`.
            visible: See `Pass`.
        """
        if self.refused is not None:
            return run(tokens, columns, visible)
        key = (len(tokens), visible)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(run, tokens, columns, visible)
            except RuntimeError as error:
                self.refused = type(error).__name__
                self.forget()
                return run(tokens, columns, visible)
        captured = self._captured[key]
        captured.tokens.copy_(tokens)
        captured.columns.copy_(columns)
        captured.graph.replay()
        return captured.logits

    def forget(self) -> None:
        """Drops all graphs: the cache they write into is about to be replaced."""
        self._captured.clear()
        self._pool = self._logits = None

    def _capture(
        self, run: Pass, tokens: torch.Tensor, columns: torch.Tensor, visible: int
    ) -> _Captured:
        tokens, columns = tokens.clone(), columns.clone()
        stream = torch.cuda.Stream(device=tokens.device)
        stream.wait_stream(torch.cuda.current_stream(tokens.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_PASSES):
                run(tokens, columns, visible)
        torch.cuda.current_stream(tokens.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = run(tokens, columns, visible)
            if self._logits is not None and self._logits.shape == logits.shape:
                logits = self._logits.copy_(logits)
        self._pool, self._logits = graph.pool(), logits
        return _Captured(graph, tokens, columns, logits)


_FILLER = 0
"""Token of rows and columns that fill a pass up; never attended to."""


class PackedContexts:
    """R prompts, each with its own growing document, decoded one token a row at a time.

    The prompts' keys and values are computed once. `next_logits` is told how many document tokens
    each row already has; a row at zero reads from the end of its prompt, regardless of what it
    wrote before, so restarting costs nothing.

    **Privacy** A row's logits depend on its own tokens alone, up to float rounding: the pad
    length P and the micro-batch of the prefill are public constants, never the longest prompt or
    the number of rows at hand, and no row attends to padding. A shared prefix is public text, read
    in a pass of its own; whether a row takes it depends on that row. Decoding passes have the rows
    at hand, in multiples of 16, and kernels may round by the number of rows and by a row's place.
    So one row more or less may move all rows of these contexts in the last bits: callers charge a
    stated `logit_slack` for as many rows as they ever put here (`privacy.batch_terms`). On the
    CPU the weights must be float32: padding to a longer neighbour moves bfloat16 logits by up to
    0.25.

    On CUDA a pass has static shapes and is captured as a graph (`CapturedPasses`).
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        reading: Reading,
        *,
        cuda_graphs: bool = True,
    ) -> None:
        """Reads the prompts into the cache.

        A public prefix is read once, and its keys and values are copied to the rows that share it;
        short prefill passes are filled up to `rows_per_prefill`. Where prompts are public, and as
        many as is public knowledge, decoding passes have no filler rows: kernels round otherwise
        for one row than for many, which only public values may steer.

        Args:
            model: transformers causal language model, in eval mode.
            prompts: R token sequences of 1..P ids.
            reading: How they are read.
            cuda_graphs: Whether passes on CUDA are captured; without effect elsewhere.
        """
        group_queries(model)
        self._model = model
        self._device = next(model.parameters()).device
        self._prompt_columns, rows_per_prefill = reading.prompt_columns, reading.rows_per_prefill
        self._row_multiple = 1 if reading.public else ROW_MULTIPLE
        self._added = {
            layer: torch.from_numpy(vector).to(self._device, model.dtype)
            for layer, vector in reading.added.items()
        }
        self._count = len(prompts)
        groups = prefix_groups(prompts, reading.public_prefixes)
        rows = sum(filled_up(len(own), rows_per_prefill) for own in groups.values())
        columns = seen_columns(reading.columns, self._device.type)
        self._cache = RowwiseCache(rows=rows, columns=columns)
        captured = cuda_graphs and self._device.type == "cuda"
        self._captured = CapturedPasses() if captured else None
        self._lengths = torch.ones(rows, dtype=torch.long, device=self._device)
        self._last_tokens = torch.full_like(self._lengths, _FILLER)
        self.keep(self._prefill(prompts, groups, rows_per_prefill))

    def __len__(self) -> int:
        """Number of contexts R."""
        return self._count

    def next_logits(self, tokens: torch.Tensor, generated: torch.Tensor) -> torch.Tensor:
        """Advances every row by one token; on CUDA logits last until the next pass."""
        if not len(self):
            vocabulary = self._model.config.get_text_config().vocab_size
            return torch.zeros((0, vocabulary), device=self._device)
        COUNTS["written"] += len(self)
        # public: lengths of drawn texts. On CUDA attention reads what a row may look at alone.
        on_device = self._device.type == "cuda"
        visible = self._prompt_columns + int(generated.max())
        visible = self._cache.columns if on_device else visible
        tokens, generated = tokens.to(self._device), generated.to(self._device)
        steered = adding_to_stream(self._model, self._added)
        placed = torch.cuda.device_of(tokens)  # Graphs are captured on the current device.
        with torch.no_grad(), placed, steered:
            tokens = torch.where(generated == 0, self._last_tokens[: len(self)], tokens)
            columns = self._lengths - 1 + self._filled(generated)
            inputs = (self._filled(tokens), columns, visible)
            if self._captured is None:
                return self._forward(*inputs)[: len(self)]
            return self._captured(self._forward, *inputs)[: len(self)]

    def keep(self, contexts: torch.Tensor) -> None:
        """Drops all contexts but these ((R',), int64, in this order); later passes are smaller."""
        contexts = contexts.to(self._device)
        self._count = len(contexts)
        rows = self._filled(contexts, -self._count % self._row_multiple)
        if self._captured is not None:
            self._captured.forget()
        self._cache.keep(rows)
        self._lengths, self._last_tokens = self._lengths[rows], self._last_tokens[rows]

    def _forward(self, tokens: torch.Tensor, columns: torch.Tensor, visible: int) -> torch.Tensor:
        """Writes one cache column a row and returns float32 logits (rows of the cache, V)."""
        positions = columns[:, None]
        output = self._model(
            input_ids=tokens[:, None],
            attention_mask=attention_masks(self._model, positions, visible),
            position_ids=positions,
            past_key_values=self._cache.at_columns(columns, visible),
            use_cache=True,
        )
        return output.logits[:, -1].float()

    def _prefill(
        self,
        prompts: Sequence[Sequence[int]],
        groups: Mapping[tuple[int, ...], list[int]],
        rows_per_pass: int,
    ) -> torch.Tensor:
        """Fills the left edge of the cache group by group; returns the row of each prompt."""
        row_of = torch.zeros(len(prompts), dtype=torch.long)
        first = 0
        for prefix, members in groups.items():
            own = [list(prompts[index]) for index in members]
            rows = slice(first, first + filled_up(len(own), rows_per_pass))
            row_of[members] = torch.arange(first, first + len(own))
            self._prefill_group(own, len(prefix), rows, rows_per_pass)
            first = rows.stop
        ends = torch.tensor([(len(each), each[-1]) for each in prompts], device=self._device)
        self._lengths[row_of], self._last_tokens[row_of] = ends.long().view(-1, 2).unbind(1)
        return row_of

    def _prefill_group(
        self, prompts: list[list[int]], shared: int, rows: slice, rows_per_pass: int
    ) -> None:
        """Reads prompts with `shared` tokens in common; these once, in a pass of their own."""
        pad = [_FILLER]
        if shared:
            prefix = torch.tensor([prompts[0][:shared]], device=self._device)
            self._prefill_part(prefix, slice(rows.start, rows.start + 1), 0)
            self._cache.copy_prefix(rows.start, rows, shared)
        size = self._prompt_columns - shared
        rests = [prompt[shared:] for prompt in prompts]
        rests += [pad] * (rows.stop - rows.start - len(prompts))
        for start in range(0, len(rests) if size else 0, rows_per_pass):
            part = [
                rest + pad * (size - len(rest)) for rest in rests[start : start + rows_per_pass]
            ]
            own = slice(rows.start + start, rows.start + start + rows_per_pass)
            self._prefill_part(torch.tensor(part, device=self._device), own, shared)

    def _prefill_part(self, tokens: torch.Tensor, rows: slice, first_column: int) -> None:
        """One fixed-shape pass. Attention is causal: a prompt never sees the padding behind it."""
        last = first_column + tokens.shape[1]
        positions = torch.arange(first_column, last, device=self._device)[None]
        with torch.no_grad():
            self._model.get_decoder()(
                input_ids=tokens,
                attention_mask=attention_masks(self._model, positions, last),
                position_ids=positions.expand_as(tokens),
                past_key_values=self._cache.at_prompt(rows, first_column),
                use_cache=True,
            )

    def _filled(self, values: torch.Tensor, spare: int | None = None) -> torch.Tensor:
        """Appends filler rows: copies of the first context's value, so columns stay in range."""
        spare = self._cache.rows - len(values) if spare is None else spare
        return torch.cat([values, values[:1].expand(spare if len(values) else 0)])


_TOKENS_PER_PASS = {"cpu": 2048, "cuda": 16384}
"""Of texts that share a pass, by the kind of device."""


class TransformersDecoder(Decoder):
    """Floating point: rounding may follow what shares a pass, so private draws charge a slack.

    Args:
        model: A causal language model, in evaluation mode.
    """

    capabilities = frozenset(Capability)

    def __init__(self, model: Any) -> None:
        import transformers

        self.model, self.device, self.dtype = model, model.device, model.dtype
        self.attention_limit = attention_limit(model.config)
        self.engine_name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        if self.device.type == "cuda":
            fuse_norms(model)

    def _read(self, prompts: Sequence[Sequence[int]], reading: Reading) -> PackedContexts:
        return PackedContexts(self.model, prompts, reading)

    def rows_at_once(self, rows: int, tokens: int) -> int:
        """Cuts a number of rows to what the free memory of this machine holds; at least one."""
        return max(1, rows_within(room_on(self.device), self._taken, rows, tokens))

    def require_groups(self, groups: Sequence[tuple[int, int]]) -> None:
        """Refuses contexts whose keys, values and logits this machine has no memory for.

        Args:
            groups: (contexts, tokens of each at most) open at a time; public numbers.

        Raises:
            ValueError: In one line, with the number of contexts that fit.
        """
        needed, room = sum(self._taken(*group) for group in groups), room_on(self.device)
        if needed <= room:
            return
        rows, tokens = max(groups, key=lambda group: self._taken(*group))
        left = room - needed + self._taken(rows, tokens)
        raise ValueError(
            f"Expected {needed / 2**30:.1f} GiB of {self.device.type} memory on this machine for "
            f"{rows} contexts of {tokens} tokens, got room for {room / 2**30:.1f} GiB, "
            f"{rows_within(left, self._taken, rows, tokens)} contexts. Lower batches_per_forward, "
            "expected_batch_size or lengths of texts, or use more memory or dtype: bfloat16."
        )

    def _taken(self, rows: int, tokens: int) -> int:
        """Bytes of contexts, of which only the sum of prompt and document is known."""
        return peak_bytes(self.model.config, rows, tokens, 0, self.dtype, self.device.type)

    def hidden_states(
        self, texts: Sequence[Sequence[int]], reading: StateReading
    ) -> dict[int, np.ndarray]:
        """See `Decoder.hidden_states`; a private text is alone in its pass."""
        return pooled_states(self.model, texts, reading, _TOKENS_PER_PASS[self.device.type])
