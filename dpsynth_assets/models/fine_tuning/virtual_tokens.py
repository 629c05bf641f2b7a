"""Prompt tuning: embeddings of a few virtual tokens are trained, and all weights stay as they are.

Lester et al. 2021 (arXiv:2104.08691). Virtual tokens are reserved ones of the model's vocabulary;
they stand before every condition. Folded in, they are rows of an ordinary
embedding table, so that whatever runs such a model runs the tuned one.
"""

from collections.abc import Sequence
from typing import Any

from dpsynth_assets.models.fine_tuning.integer_base import multiply_in_integers, restore_layers

SEED = 0
"""Of the public draw of the words that virtual tokens start from."""


def reserved_tokens(tokenizer: Any) -> list[int]:
    """Special tokens that stand for nothing: no begin, end or filler, none of a chat's turns."""
    named = (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    )
    chat = tokenizer.chat_template or ""
    return [
        number
        for number, token in sorted(tokenizer.added_tokens_decoder.items())
        if token.special and number not in named and token.content not in chat
    ]


def virtual_tokens(tokenizer: Any, count: int) -> tuple[int, ...]:
    """The first reserved tokens of a vocabulary.

    Raises:
        ValueError: It has fewer.
    """
    found = reserved_tokens(tokenizer)
    if len(found) < count:
        raise ValueError(
            f"Expected a model with {count} reserved tokens for prompt_tokens, got one with "
            f"{len(found)}. Lower prompt_tokens, or give lora_rank instead."
        )
    return tuple(found[:count])


def add_virtual_tokens(model: Any, tokens: Sequence[int], *, integers: bool = False) -> Any:
    """Freezes a decoder and gives some tokens embeddings of their own, which are trained; in place.

    Args:
        model: A causal transformers model.
        tokens: Ids of the virtual tokens.
        integers: Whether frozen products are of 8-bit integers; see `multiply_in_integers`.
    """
    model.requires_grad_(False)
    model.set_input_embeddings(_virtual_embedding()(model.get_input_embeddings(), tokens))
    if integers:
        multiply_in_integers(model)
    return model


def fold_virtual_tokens(model: Any) -> Any:
    """Writes trained embeddings into the table, apart from the output layer; in place."""
    import torch
    from torch import nn

    restore_layers(model)
    tuned = model.get_input_embeddings()
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    model.config.tie_word_embeddings = False
    with torch.no_grad():
        table = tuned.base.weight.detach().clone()
        table[list(tuned.tokens)] = tuned.virtual.weight.to(table.dtype)
    model.set_input_embeddings(nn.Embedding.from_pretrained(table))
    return model


def _virtual_embedding() -> Any:
    """The class, made when torch is there."""
    import torch
    from torch import nn

    class VirtualEmbedding(nn.Module):
        """An embedding table in which some tokens have rows of their own."""

        def __init__(self, base: Any, tokens: Sequence[int]) -> None:
            super().__init__()
            self.base, self.tokens = base, tuple(tokens)
            words, width = base.weight.shape
            self.virtual = nn.Embedding(len(tokens), width, dtype=base.weight.dtype)
            drawn = torch.randperm(words, generator=torch.Generator().manual_seed(SEED))
            with torch.no_grad():
                self.virtual.weight.copy_(base.weight[drawn[: len(tokens)]])
            self.virtual.to(base.weight.device)
            places = torch.full((words,), -1, device=base.weight.device)
            places[list(tokens)] = torch.arange(len(tokens), device=base.weight.device)
            self.places: torch.Tensor
            self.register_buffer("places", places, persistent=False)

        def forward(self, ids: Any) -> Any:
            places = self.places[ids]
            own = self.virtual(places.clamp(min=0))
            return torch.where((places >= 0)[..., None], own, self.base(ids))

    return VirtualEmbedding
