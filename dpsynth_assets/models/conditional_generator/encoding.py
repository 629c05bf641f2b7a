"""Conditions and documents as text and as token ids, for encoder-decoders and decoder-only models.

A condition is free-text aspects, one a line (`Document Type: ...`, `Label: ...` where a label has a
text, `Keywords: a, b, c`; any of them in this order, or none), or words in a prompt, so that a
decoder-only generator starts where other methods ask it for a text.

Special tokens stand where the checkpoint's own tokenizer puts them; text never yields one, so a
document that contains an end token's characters cannot close itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.decoding import attention_limit
from dpsynth_assets.models.language_model import (
    FEWEST_TOKENS,
    IGNORED,
    LanguageModel,
    LanguageModelError,
    causal_rows,
    padded,
)
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

if TYPE_CHECKING:
    import torch

PREFIX_SEPARATOR = "\n\n"
"""Separator of condition and document where one prompt holds both."""
DOCUMENT_TYPE, LABEL, KEYWORDS = "Document Type", "Label", "Keywords"

KEYWORDS_IN_PROMPT = 4
"""Keywords of a topic that a prompt names: the first ones say the topic, each more is a token or
two of every record's pass."""

NO_LABEL = "text"
"""Stands in a label's place where there is none."""

LONGEST_PROMPT = 4096
"""Room for a prompt in a model without a bound of its own."""


def condition_text(
    keywords: Sequence[str], document_type: str | None = None, label_text: str | None = None
) -> str:
    """Writes a condition.

    Args:
        keywords: Words or phrases in order of importance; none for a condition without them, as a
            document outside all topics has.
        document_type: What kind of text, e.g. `news`; empty or None leaves the line out.
        label_text: The label as it reads in text; empty or None leaves the line out.

    **Source**: Tan et al. 2025, section 3.3: in fine-tuning, the ten keywords of the document's
    topic, and the document type where one is known. The label line is ours.
    """
    return aspects_text(
        {DOCUMENT_TYPE: document_type or "", LABEL: label_text or "", KEYWORDS: ", ".join(keywords)}
    )


def aspects_text(aspects: Mapping[str, str]) -> str:
    """Writes named aspects one a line, each value on that line; empty values are left out."""
    lines = ((name, " ".join(value.split())) for name, value in aspects.items())
    return "\n".join(f"{name}: {value}" for name, value in lines if value)


def prompt_condition(label_text: str, keywords: Sequence[str]) -> str:
    """Writes what a prompt says of a document in its label's place.

    Args:
        label_text: The label as it reads in text; may be empty.
        keywords: Words of the document's topic in order of importance; may be none.
    """
    name = label_text or NO_LABEL
    return f"{name} about {', '.join(keywords[:KEYWORDS_IN_PROMPT])}" if keywords else name


@dataclass(frozen=True)
class PairBatch:
    """B encoded pairs, padded on the right.

    Attributes:
        inputs: Keyword arguments of the model's forward pass, each (B, ...).
        labels: int64 (B, T): the token that the logits at the same place should predict, or -100.
    """

    inputs: "dict[str, torch.Tensor]" = field(repr=False)
    labels: "torch.Tensor" = field(repr=False)

    def to(self, device: Any) -> "PairBatch":
        """Moves all tensors to a device."""
        moved = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return PairBatch(moved, self.labels.to(device))


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
    """

    checkpoint: LanguageModel
    has_encoder: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    start: tuple[int, ...]
    condition_tokens: int

    @classmethod
    def of_checkpoint(
        cls, checkpoint: LanguageModel, has_encoder: bool, condition_tokens: int
    ) -> "PairEncoder":
        """Reads the places of special tokens off the tokenizer.

        A decoder starts from the configuration's start token followed by what the tokenizer puts
        before a text, as BART was pretrained.

        Args:
            checkpoint: Tokenizer and configuration.
            has_encoder: Whether conditions go through an encoder.
            condition_tokens: Conditions are cut to this unless the caller says otherwise.

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
        start = _decoder_start(checkpoint, before) if has_encoder else ()
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
        """Tokens of each distinct condition, by its text."""
        distinct = list(dict.fromkeys(conditions))
        return dict(zip(distinct, self.condition_ids(distinct, bound), strict=True))

    def document_ids(self, documents: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Tokens of each document and the end token; a document that is cut has no end token."""
        bound, end = self.document_bound(max_tokens), self.end_token_id
        return [[*ids, end][:bound] for ids in self.checkpoint.encode_all(documents)]

    def document_text(self, ids: Sequence[int]) -> str:
        """Text of a generated document's tokens, special tokens left out."""
        return self.checkpoint.decode(ids).strip()

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a document, beside the end token: none."""
        return ()

    def document_bound(self, max_tokens: int) -> int:
        """At most `max_tokens`, within the model's positions, regardless of the texts.

        A decoder-only model reads condition and document in one row.

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
            taken = max(self.condition_tokens, len(self.condition_ids([""], 0)[0]))
        if positions is None:
            return max_tokens
        if positions <= taken:
            raise LanguageModelError(
                f"Expected room for a document beside conditions of {taken} tokens in "
                f"{self.checkpoint.name}, got {positions} positions. Take a model with more."
            )
        return min(max_tokens, int(positions) - taken)

    def pad(
        self, conditions: Sequence[Sequence[int]], documents: Sequence[Sequence[int]]
    ) -> PairBatch:
        """Pads token ids of B conditions and documents into one batch.

        An encoder reads the condition, and labels are one token ahead of the decoder's input. A
        decoder-only model reads both in one row.
        """
        if not self.has_encoder:
            return PairBatch(*causal_rows(conditions, documents, self.pad_token_id))
        ignored = [IGNORED] * (len(self.start) - 1)
        written = [[*self.start, *ids[:-1]] for ids in documents]
        filled = partial(padded, least=FEWEST_TOKENS)
        inputs = {
            "input_ids": filled(conditions, self.pad_token_id),
            "attention_mask": filled([[1] * len(ids) for ids in conditions], 0),
            "decoder_input_ids": filled(written, self.pad_token_id),
        }
        return PairBatch(inputs, filled([[*ignored, *ids] for ids in documents], IGNORED))


@dataclass(frozen=True)
class PromptedEncoder(PairEncoder):
    """Tokens of prompts and of the documents that follow them, for a decoder-only model.

    Attributes:
        prompted: The checkpoint's tokens in the declared or default templates.

    **Privacy** A document's tokens are a function of its text alone, and where they are cut follows
    from public settings.
    """

    prompted: PromptedModel = field(kw_only=True)

    @classmethod
    def of(cls, checkpoint: LanguageModel, templates: PromptTemplates) -> "PromptedEncoder":
        """Encodes for a checkpoint; half of its positions are room for the prompt.

        Raises:
            ValueError: The declared end of a text is not one token of this model.
        """
        positions = attention_limit(checkpoint.config)
        room = LONGEST_PROMPT if positions is None else positions // 2
        prompted = PromptedModel(checkpoint, templates)
        return cls(checkpoint, False, (), (), (), room, prompted=prompted)

    @property
    def end_token_id(self) -> int:
        """The token that ends a document: the end of a line, unless prompts declare another."""
        return self.prompted.end_token_id

    def condition_ids(self, conditions: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Tokens of each prompt without examples; one that is too long loses its beginning."""
        found = [self.prompted.prompt_ids(condition, [], 1) for condition in conditions]
        return [ids[max(0, len(ids) - max_tokens) :] for ids in found]

    def document_ids(self, documents: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Tokens of each document, its closing and the end token; a cut document has no end."""
        bound = self.document_bound(max_tokens)
        return [self.prompted.document_ids(text)[:bound] for text in documents]

    def document_text(self, ids: Sequence[int]) -> str:
        """Text of a generated document, without its closing."""
        return self.prompted.read_text(ids)[0]

    @property
    def stop(self) -> tuple[str, ...]:
        """The end of a line, which other tokens than the end token may hold."""
        return ("\n",) if self.prompted.ends_with_line else ()


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
        own = tokenizer.bos_token_id
        start = tokenizer.eos_token_id if own is None else own
    return before if before and before[0] == start else (int(start), *before)
