"""Conditions as prompts: a decoder-only generator starts where other methods ask it for a text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpsynth_assets.models.conditional_generator.encoding import PairEncoder
from dpsynth_assets.models.decoding import attention_limit
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.prompt_templates import PromptedModel, PromptTemplates

KEYWORDS_IN_PROMPT = 4
"""Keywords of a topic that a prompt names: the first ones say the topic, each more is a token or
two of every record's pass."""

NO_LABEL = "text"
"""Stands in a label's place where there is none."""

LONGEST_PROMPT = 4096
"""Room for a prompt in a model without a bound of its own."""


def prompt_condition(label_text: str, keywords: Sequence[str]) -> str:
    """Writes what a prompt says of a document in its label's place.

    Args:
        label_text: The label as it reads in text; may be empty.
        keywords: Words of the document's topic in order of importance; may be none.
    """
    name = label_text or NO_LABEL
    return f"{name} about {', '.join(keywords[:KEYWORDS_IN_PROMPT])}" if keywords else name


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

    def document_ids(
        self, documents: Sequence[str], max_tokens: int, condition_tokens: int | None = None
    ) -> list[list[int]]:
        """Tokens of each document, its closing and the end token; a cut document has no end."""
        bound = self.document_bound(max_tokens, condition_tokens)
        return [self.prompted.document_ids(text)[:bound] for text in documents]

    def document_text(self, ids: Sequence[int]) -> str:
        """Text of a generated document, without its closing."""
        return self.prompted.read_text(ids)[0]

    @property
    def stop(self) -> tuple[str, ...]:
        """The end of a line, which other tokens than the end token may hold."""
        return ("\n",) if self.prompted.ends_with_line else ()
