"""Contexts that share one forward pass: prompts cached once, documents continued and restarted."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding.attention import grouped_queries
from dpsynth_assets.models.decoding.cache import RowwiseCache

if TYPE_CHECKING:
    import torch

_ROW_MULTIPLE = 16
"""Decoding passes have a multiple of this many rows, so kernels see few distinct shapes."""


class PackedContexts:
    """R prompts, each with its own growing document, decoded one token a row at a time.

    The prompts' keys and values are computed once. `next_logits` is told how many document tokens
    each row already has; a row at zero reads from the end of its prompt, whatever it wrote before,
    so restarting costs nothing.

    **Privacy** A row's logits depend on its own tokens alone, up to float rounding: the pad
    length P and the micro-batch of the prefill are public constants, never the longest prompt or
    the number of rows at hand, and no row attends to padding. Decoding passes have the rows at
    hand, in multiples of 16; in float32 on the CPU a row's logits then came out the same to the
    last bit for 1 to 512 rows. Callers charge a stated `logit_slack` all the same. On the CPU the
    weights must be float32: padding to a longer neighbour moves bfloat16 logits by up to 0.25.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        *,
        prompt_columns: int,
        max_new_tokens: int,
        pad_token_id: int,
        rows_per_prefill: int = 16,
    ) -> None:
        """Reads the prompts into the cache.

        Args:
            model: transformers causal language model, in eval mode.
            prompts: R token sequences of 1..P ids; R = 0 is allowed and costs nothing.
            prompt_columns: P, the public pad length.
            max_new_tokens: T, the longest document any row will hold.
            pad_token_id: Filler; never attended to.
            rows_per_prefill: Rows of one prefill pass; short passes are filled up to it.

        Raises:
            ValueError: If a prompt is empty or longer than P, if the model's positions or sliding
                window are shorter than P + T, or if weights on the CPU are not float32.
        """
        import torch

        self._model = model
        self._device = next(model.parameters()).device
        self._prompt_columns = prompt_columns
        self._pad_token_id = pad_token_id
        self._count = len(prompts)
        _check_model(model, prompt_columns + max_new_tokens)
        _check_prompts(prompts, prompt_columns)
        rows = -(-len(prompts) // rows_per_prefill) * rows_per_prefill
        self._cache = RowwiseCache(rows=rows, columns=prompt_columns + max_new_tokens)
        self._lengths, self._last_tokens = self._prefill(prompts, rows, rows_per_prefill)
        self.keep(torch.arange(len(prompts)))

    def __len__(self) -> int:
        """Number of contexts R."""
        return self._count

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Advances every row by one token.

        Args:
            tokens: (R,) int64, the document's last token; ignored where `generated` is 0.
            generated: (R,) int64 in [0, T], tokens the row's document has so far (`tokens`
                included). Rows at 0 start a document from their prompt.

        Returns:
            Logits (R, V) of each row's next token, float32.
        """
        import torch

        if not len(self):
            return torch.zeros((0, self._model.config.vocab_size), device=self._device)
        visible = self._prompt_columns + int(generated.max())  # public: lengths of drawn texts
        tokens, generated = tokens.to(self._device), generated.to(self._device)
        with torch.no_grad(), grouped_queries(self._model):
            tokens = torch.where(generated == 0, self._last_tokens[: len(self)], tokens)
            return self._forward(self._filled(tokens), self._filled(generated), visible)

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all contexts but these ((R',), int64, ascending); later passes are smaller."""
        contexts = contexts.to(self._device)
        self._count = len(contexts)
        rows = self._filled(contexts, -self._count % _ROW_MULTIPLE)
        self._cache.keep(rows)
        self._lengths, self._last_tokens = self._lengths[rows], self._last_tokens[rows]

    def _forward(
        self, tokens: "torch.Tensor", generated: "torch.Tensor", visible: int
    ) -> "torch.Tensor":
        import torch

        columns = self._lengths - 1 + generated
        hidden = torch.arange(visible, device=self._device)[None, :] > columns[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._model.dtype, device=self._device)
        mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)
        output = self._model(
            input_ids=tokens[:, None],
            attention_mask=mask[:, None, None, :],
            position_ids=columns[:, None],
            past_key_values=self._cache.at_columns(columns, visible),
            use_cache=True,
        )
        return output.logits[: len(self), -1].float()

    def _prefill(
        self, prompts: Sequence[Sequence[int]], rows: int, rows_per_pass: int
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Fills the left edge of the cache; returns prompt lengths and last tokens, (rows,)."""
        import torch

        pad = [self._pad_token_id]
        filled = [list(prompt) for prompt in prompts] + [pad] * (rows - len(prompts))
        lengths = torch.tensor([len(p) for p in filled], device=self._device, dtype=torch.long)
        last = torch.tensor([p[-1] for p in filled], device=self._device, dtype=torch.long)
        size = self._prompt_columns
        for start in range(0, rows, rows_per_pass):
            part = slice(start, start + rows_per_pass)
            tokens = torch.tensor([p + pad * (size - len(p)) for p in filled[part]])
            self._prefill_part(tokens.to(self._device), part)
        return lengths, last

    def _prefill_part(self, tokens: "torch.Tensor", rows: slice) -> None:
        """One fixed-shape pass. Attention is causal: a prompt never sees the padding behind it."""
        import torch

        size = tokens.shape[1]
        mask = torch.full((size, size), torch.finfo(self._model.dtype).min, dtype=self._model.dtype)
        with torch.no_grad(), grouped_queries(self._model):
            self._model.base_model(
                input_ids=tokens,
                attention_mask=mask.triu(1)[None, None].to(self._device),
                position_ids=torch.arange(size, device=self._device).expand_as(tokens),
                past_key_values=self._cache.at_prompt(rows),
                use_cache=True,
            )

    def _filled(self, values: "torch.Tensor", spare: int | None = None) -> "torch.Tensor":
        """Appends filler rows: copies of the first context's value, so columns stay in range."""
        import torch

        spare = self._cache.rows - len(values) if spare is None else spare
        return torch.cat([values, values[:1].expand(spare if len(values) else 0)])


def _check_model(model: Any, columns: int) -> None:
    import torch

    config = model.config
    if model.device.type == "cpu" and model.dtype != torch.float32:
        raise ValueError(
            f"Expected float32 weights on the CPU, got {model.dtype}: lower precision lets one "
            "record move another's logits. Load the model with dtype=torch.float32."
        )
    limits = [getattr(config, "max_position_embeddings", None), _sliding_window(config)]
    limit = min((limit for limit in limits if limit is not None), default=columns)
    if columns > limit:
        raise ValueError(
            f"Expected prompt and document within {limit} tokens of attention, got {columns}. "
            "Lower max_example_tokens, examples_per_context or max_document_tokens."
        )


def _sliding_window(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    if layers is not None and "sliding_attention" not in layers:
        return None
    return window


def _check_prompts(prompts: Sequence[Sequence[int]], prompt_columns: int) -> None:
    if any(not 1 <= len(prompt) <= prompt_columns for prompt in prompts):
        raise ValueError(
            f"Expected prompts of 1..{prompt_columns} tokens, got a shorter or longer one. "
            "Cut prompts to the public pad length first."
        )
