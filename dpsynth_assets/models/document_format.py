"""Writes documents of one label in a few-shot prompt, and reads them back from tokens.

A prompt of k examples is k whole documents followed by the opening of one more, so it ends exactly
where a new document's text begins; the model writes that text and closes it with the end token.
Examples are cut by tokens before they are placed, and text yields neither a special token nor the
end token: a record that contains the end token's characters cannot close its document early.

Templates that a dataset file declares instead are in `prompt_templates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenCodec(Protocol):
    """The part of a language model that a format needs."""

    @property
    def begin_token_id(self) -> int | None:
        """First token of a prompt; None where the model has none."""

    @property
    def end_token_id(self) -> int:
        """Token that ends a document."""

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, without special tokens."""


@dataclass(frozen=True)
class DocumentFormat:
    """Template of one document: `opening(label)`, text, `closing`, the end token, `separator`.

    Attributes:
        opening: What precedes the text; `{label}` stands for the label's text.
        closing: What stands between the text and the end token.
        end: The end token as text; None for the tokenizer's own end-of-sequence token.
        separator: What stands between the end token and the next document.
    """

    opening: str
    closing: str
    end: str | None
    separator: str

    def opening_text(self, label_text: str) -> str:
        """Writes what precedes a document's text; the only place where a label is written."""
        return self.opening.replace("{label}", label_text)

    def document_ids(
        self, codec: TokenCodec, label_text: str, text: str, max_text_tokens: int
    ) -> list[int]:
        """Tokens of one whole document, its text cut to `max_text_tokens`, end token included.

        The end token is taken out of the text: a fence, unlike a special token, may stand in it.
        """
        end = codec.end_token_id
        text_ids = [token for token in codec.encode(text) if token != end]
        return [
            *codec.encode(self.opening_text(label_text)),
            *text_ids[:max_text_tokens],
            *codec.encode(self.closing),
            end,
        ]

    def prompt_ids(
        self,
        codec: TokenCodec,
        label_text: str,
        examples: Sequence[str],
        max_example_tokens: int,
    ) -> list[int]:
        """Tokens of a few-shot prompt.

        Args:
            codec: The language model that will read the prompt.
            label_text: Label of all examples and of the document to be written; may be empty.
            examples: k texts in order; k = 0 gives the public prompt.
            max_example_tokens: Each example is cut to this many tokens (> 0).

        Returns:
            Begin token if the model has one, k whole documents, and the opening of the next: the
            model's first generated token is the first token of a text.

        Raises:
            ValueError: `max_example_tokens` is not positive.
        """
        if max_example_tokens < 1:
            raise ValueError(
                f"max_example_tokens must be at least 1, got {max_example_tokens}; "
                "use an empty list of examples for a prompt without any."
            )
        ids = [] if codec.begin_token_id is None else [codec.begin_token_id]
        for text in examples:
            ids += self.document_ids(codec, label_text, text, max_example_tokens)
            ids += codec.encode(self.separator)
        return ids + codec.encode(self.opening_text(label_text))

    def read_text(self, codec: TokenCodec, generated: Sequence[int]) -> tuple[str, bool]:
        """Reads a text back from generated tokens.

        Returns:
            The text before the first end token, and whether that token was there (False: the text
            was cut off by a budget or a length limit).
        """
        ids = list(generated)
        complete = codec.end_token_id in ids
        body = ids[: ids.index(codec.end_token_id)] if complete else ids
        return codec.decode(body).removesuffix(self.closing).strip(), complete


PAPER_PT = DocumentFormat(opening="{label}\n```\n", closing="\n", end="```", separator="\n\n")
"""Template for pretrained (not instruction-tuned) models.

**Source**: Amin et al. 2025, appendix E.4.1: the label above each example, a blank line between
examples, generation stopped at the end token ```` ``` ````. We open a fence under every label, so
that the token which ends a document closes something.
"""

PLAIN_PT = DocumentFormat(opening="{label}\n", closing="", end=None, separator="\n\n")
"""For pretrained models whose tokenizer writes the fence with more than one token: the documents
end with the tokenizer's own end-of-sequence token."""
