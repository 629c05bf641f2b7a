"""Turns (condition, document) pairs into token ids, for encoder-decoders and decoder-only models.

Special tokens stand where the checkpoint's own tokenizer puts them; text never yields one, so a
document that contains an end token's characters cannot close itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding import attention_limit
from dpsynth_assets.models.language_model import LanguageModel, LanguageModelError

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Label of a position that no loss counts: padding, condition, tokens that are always the same."""
PREFIX_SEPARATOR = "\n\n"
"""Separator of condition and document where one prompt holds both."""


@dataclass(frozen=True)
class PairBatch:
    """B encoded pairs, padded on the right.

    Attributes:
        inputs: Keyword arguments of the model's forward pass, each (B, ...).
        labels: int64 (B, T): the token that the logits at the same place should predict, or -100.
    """

    inputs: "dict[str, torch.Tensor]" = field(repr=False)
    labels: "torch.Tensor" = field(repr=False)

    def __len__(self) -> int:
        """Number of pairs B."""
        return len(self.labels)

    def to(self, device: Any) -> "PairBatch":
        """Moves all tensors to a device."""
        moved = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return PairBatch(moved, self.labels.to(device))

    def take(self, rows: Any) -> "PairBatch":
        """Selects pairs by slice or index tensor; the padding stays."""
        chosen = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return PairBatch(chosen, self.labels[rows])

    def split(self, rows: int) -> "Iterator[PairBatch]":
        """Cuts into micro-batches of at most `rows` pairs."""
        for start in range(0, len(self), rows):
            yield self.take(slice(start, start + rows))


@dataclass(frozen=True)
class PairEncoder:
    """Places of a checkpoint's begin and end tokens.

    Attributes:
        checkpoint: Tokenizer and configuration.
        has_encoder: Whether conditions go through an encoder.
        before: Special tokens before any encoded text.
        after: Special tokens after any encoded text; ends with the end token.
        start: What a document's tokens follow in the decoder (encoder-decoders only).
        condition_tokens: Room that documents leave for conditions where both share positions.
        prefix: Tokens before every condition: virtual ones of prompt tuning.
    """

    checkpoint: LanguageModel
    has_encoder: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    start: tuple[int, ...]
    condition_tokens: int
    prefix: tuple[int, ...] = ()

    @classmethod
    def for_checkpoint(
        cls,
        checkpoint: LanguageModel,
        has_encoder: bool,
        condition_tokens: int,
        start_tokens: Sequence[str] | None = None,
    ) -> "PairEncoder":
        """Reads the places of special tokens off the tokenizer.

        Args:
            checkpoint: Tokenizer and configuration.
            has_encoder: Whether conditions go through an encoder.
            condition_tokens: Conditions are cut to this unless the caller says otherwise.
            start_tokens: Replaces what the decoder starts from; None for the configuration's start
                token followed by what the tokenizer puts before a text, as BART was pretrained.

        Raises:
            LanguageModelError: The tokenizer has no end token.
        """
        tokenizer = checkpoint.tokenizer
        if tokenizer.eos_token_id is None:
            raise LanguageModelError(
                f"Expected a tokenizer with an end token in {checkpoint.source}, found none; set "
                "eos_token in its tokenizer_config.json."
            )
        before, after = _special_tokens(tokenizer)
        if not after or after[-1] != tokenizer.eos_token_id:
            after = (*after, int(tokenizer.eos_token_id))
        if start_tokens is None:
            start = _decoder_start(checkpoint, before) if has_encoder else ()
        else:
            start = tuple(tokenizer.convert_tokens_to_ids(list(start_tokens)))
        return cls(checkpoint, has_encoder, before, after, start, condition_tokens)

    @property
    def end_token_id(self) -> int:
        """The token that ends a document."""
        return int(self.checkpoint.tokenizer.eos_token_id)

    @property
    def pad_token_id(self) -> int:
        """Filler; always masked."""
        token = self.checkpoint.tokenizer.pad_token_id
        return self.end_token_id if token is None else int(token)

    @property
    def start_tokens(self) -> list[str]:
        """The decoder's start as token strings, as the format file states it."""
        return list(self.checkpoint.tokenizer.convert_ids_to_tokens(list(self.start)))

    def condition_ids(self, conditions: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Tokens of each condition, at most `max_tokens`, special tokens included.

        An encoder reads them as they are; a decoder-only prompt ends with the separator, so that
        the next token is the first of a document.
        """
        after = list(self.after if self.has_encoder else self.checkpoint.encode(PREFIX_SEPARATOR))
        room = max(0, max_tokens - len(self.before) - len(after))
        encoded = self.checkpoint.encode_all(conditions)
        return [[*self.before, *ids[:room], *after] for ids in encoded]

    def distinct_conditions(self, conditions: Sequence[str], bound: int) -> dict[str, list[int]]:
        """Tokens of each distinct condition, the prefix before them, by its text."""
        distinct = list(dict.fromkeys(conditions))
        found = self.condition_ids(distinct, bound - len(self.prefix))
        return {text: [*self.prefix, *ids] for text, ids in zip(distinct, found, strict=True)}

    def document_ids(
        self, documents: Sequence[str], max_tokens: int, condition_tokens: int | None = None
    ) -> list[list[int]]:
        """Tokens of each document and the end token; a document that is cut has no end token."""
        bound, end = self.document_bound(max_tokens, condition_tokens), self.end_token_id
        return [[*ids, end][:bound] for ids in self.checkpoint.encode_all(documents)]

    def document_text(self, ids: Sequence[int]) -> str:
        """Text of a generated document's tokens, special tokens left out."""
        return self.checkpoint.decode(ids).strip()

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a document, beside the end token: none."""
        return ()

    def document_bound(self, max_tokens: int, condition_tokens: int | None = None) -> int:
        """At most `max_tokens`, and no more than the model has positions for, whatever the texts.

        Args:
            max_tokens: What the caller asks for.
            condition_tokens: Conditions are cut to this; a decoder-only model reads both in one
                row. None for the encoder's own bound.

        Raises:
            LanguageModelError: The longest condition leaves no room for a document.

        **Privacy** The bound follows from public settings alone: whether a run fits must not depend
        on whether some record is long.
        """
        if self.has_encoder:
            positions = getattr(self.checkpoint.config, "max_position_embeddings", None)
            taken = len(self.start) - 1
        else:
            positions = attention_limit(self.checkpoint.config)
            taken = max(
                condition_tokens or self.condition_tokens, len(self.condition_ids([""], 0)[0])
            )
        if positions is None:
            return max_tokens
        if positions <= taken:
            raise LanguageModelError(
                f"Expected room for a document beside conditions of {taken} tokens in "
                f"{self.checkpoint.name}, got {positions} positions. Take a model with more."
            )
        return min(max_tokens, int(positions) - taken)

    def batch(
        self,
        conditions: Sequence[str],
        documents: Sequence[str],
        max_condition_tokens: int,
        max_document_tokens: int,
    ) -> PairBatch:
        """Encodes and pads B pairs.

        Args:
            conditions: B condition texts; an empty one is allowed.
            documents: B documents.
            max_condition_tokens: Conditions are cut to this, special tokens included.
            max_document_tokens: Documents are cut to this, end token included.

        Raises:
            ValueError: The lists differ in length or are empty.
        """
        if len(conditions) != len(documents) or not documents:
            raise ValueError(
                f"Expected as many conditions as documents, at least one, got {len(conditions)} "
                f"and {len(documents)}; give condition_text(()) where there is no condition."
            )
        return self.pad(
            self.condition_ids(conditions, max_condition_tokens),
            self.document_ids(documents, max_document_tokens, max_condition_tokens),
        )

    def pad(
        self, conditions: Sequence[Sequence[int]], documents: Sequence[Sequence[int]]
    ) -> PairBatch:
        """Pads token ids of B conditions and documents into one batch."""
        return (
            self._two_sides(conditions, documents)
            if self.has_encoder
            else self._one_row(conditions, documents)
        )

    def _two_sides(
        self, conditions: Sequence[Sequence[int]], documents: Sequence[Sequence[int]]
    ) -> PairBatch:
        """Encoder input, decoder input, and labels one token ahead of the decoder input."""
        ignored = [IGNORED] * (len(self.start) - 1)
        written = [[*self.start, *ids[:-1]] for ids in documents]
        inputs = {
            "input_ids": _padded(conditions, self.pad_token_id),
            "attention_mask": _padded([[1] * len(ids) for ids in conditions], 0),
            "decoder_input_ids": _padded(written, self.pad_token_id),
        }
        return PairBatch(inputs, _padded([[*ignored, *ids] for ids in documents], IGNORED))

    def _one_row(
        self, conditions: Sequence[Sequence[int]], documents: Sequence[Sequence[int]]
    ) -> PairBatch:
        """Condition and document in one row; labels one token ahead, the condition's ignored."""
        pairs = list(zip(conditions, documents, strict=True))
        rows = [[*condition, *document[:-1]] for condition, document in pairs]
        labels = [[IGNORED] * (len(condition) - 1) + list(ids) for condition, ids in pairs]
        inputs = {
            "input_ids": _padded(rows, self.pad_token_id),
            "attention_mask": _padded([[1] * len(ids) for ids in rows], 0),
        }
        return PairBatch(inputs, _padded(labels, IGNORED))


def _special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Finds the tokens that the tokenizer puts before and after a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = whole.index(plain[0])
    return tuple(whole[:first]), tuple(whole[first + len(plain) :])


def _decoder_start(checkpoint: LanguageModel, before: tuple[int, ...]) -> tuple[int, ...]:
    """The configuration's start token, then the tokens before a text."""
    tokenizer, start = checkpoint.tokenizer, checkpoint.config.decoder_start_token_id
    if start is None:
        start = (
            tokenizer.bos_token_id
            if tokenizer.bos_token_id is not None
            else (tokenizer.eos_token_id)
        )
    return before if before and before[0] == start else (int(start), *before)


def _padded(rows: Sequence[Sequence[int]], filler: int) -> "torch.Tensor":
    """int64 (B, longest row), filled up on the right."""
    import numpy as np
    import torch

    lengths = np.array([len(row) for row in rows])
    result = np.full((len(rows), int(lengths.max())), filler, dtype=np.int64)
    result[np.arange(result.shape[1]) < lengths[:, None]] = np.concatenate(
        [np.asarray(row, dtype=np.int64) for row in rows]
    )
    return torch.from_numpy(result)
