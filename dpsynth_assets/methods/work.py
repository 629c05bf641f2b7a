"""Counts the work of a step from settings and public facts, to estimate its minutes.

**Privacy** Nothing here reads records: their number counts only where it is declared, and their
length is that of the public documents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import TYPE_CHECKING, Final

from dpsynth_assets.datasets.public_spec import EngineSpec

if TYPE_CHECKING:
    from dpsynth_assets.models.prompt_templates import PromptTemplates


LANGUAGE_MODEL: Final = "public_language_model"
"""The base's language model, decoded: by exact integers on processors where the base says so."""

LANGUAGE_MODEL_WEIGHTS: Final = "public_language_model weights"
"""Its weights in floating point (training, likelihoods), on the device that the base names."""

TEXT_EMBEDDER: Final = "text_embedder"
CONDITIONAL_GENERATOR: Final = "conditional_generator"

RunModel = str | EngineSpec
"""One of these names, or an engine with what it serves."""


_FORMAT_TOKENS = 6
"""Tokens around a label and a text in a model's own document format, about."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Amounts that add up.

    Attributes:
        read: Tokens of prompts and texts that the language model reads.
        steps: Decoding steps, however many rows share one.
        written: Rows of all decoding steps: tokens, each with its draw.
        embedded: Tokens that the text embedder reads.
        trained: Multiply-adds of training and of small models, in thousands of millions.
        seconds: All else, in seconds of the processor that constants were measured on.
    """

    read: float = 0.0
    steps: float = 0.0
    written: float = 0.0
    embedded: float = 0.0
    trained: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Both, one after the other."""
        return Work(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in AMOUNTS}
        )


AMOUNTS = fields(Work)


@dataclass(frozen=True, kw_only=True)
class PublicSizes:
    """Numbers and lengths that a count may know.

    Attributes:
        text_tokens: Tokens of a text: the mean of the public documents.
        documents: Public documents.
        records: The declared number of records; where none is, as many as public documents.
        label_texts: How the labels are written in prompts.
        prompts: Prompt templates; None: the model's document format.
        tokens_of: Tokens of public words, about.
        parameters: Numbers in the weights of a public model, by its artifact's name.
    """

    text_tokens: float
    documents: int
    records: int
    label_texts: Sequence[str]
    prompts: "PromptTemplates | None"
    tokens_of: Callable[[str], float]
    parameters: Mapping[str, float] = field(default_factory=dict)

    def text(self, most: int) -> float:
        """Tokens of a text that is cut to `most` of them."""
        return min(float(most), self.text_tokens)

    def frame(self, examples: int) -> float:
        """Tokens of a prompt without its examples: the mean over the labels."""
        labels = [self._frame(label, examples) for label in self.label_texts]
        return sum(labels) / len(labels)

    def prompt(self, examples: int, most: int) -> float:
        """Tokens of a prompt with this many examples, each cut to `most` tokens."""
        return self.frame(examples) + examples * self.text(most)

    def shared_start(self, examples: int) -> float:
        """Tokens before the first example, which prompts of a label have in common."""
        from dpsynth_assets.models.prompt_templates import GAP

        own = self.prompts
        if own is None or own.private is None or not examples:
            return 0.0
        starts = [
            own.asked(each) + own.private_text(each, examples).split(GAP)[0]
            for each in self.label_texts
        ]
        return sum(map(self.tokens_of, starts)) / len(starts)

    def writing(
        self,
        texts: float,
        prompt: float,
        most: float,
        *,
        rows: int,
        begun: float = 0.0,
        different: float | None = None,
    ) -> Work:
        """Work of writing texts after prompts.

        Args:
            texts: Texts to write.
            prompt: Tokens of a prompt.
            most: Tokens that a text may have.
            rows: Texts that are written together.
            begun: Tokens of a text that stand in its prompt already.
            different: Prompts that differ, where an engine writes, which reads equal ones once a
                pass; None: all do.
        """
        if texts <= 0:
            return Work()
        passes = ceil(texts / rows)
        read = texts if different is None else min(texts, passes + different - 1)
        return Work(
            read=read * (prompt + begun),
            steps=passes * max(1.0, most - begun),
            written=texts * max(1.0, self.text(int(most)) - begun),
        )

    def _frame(self, label: str, examples: int) -> float:
        from dpsynth_assets.models.prompt_templates import GAP

        own = self.prompts
        if own is None or (own.private is None and own.public is None):
            start = own.opening(label) if own is not None else ""
            around = self.tokens_of(label) + _FORMAT_TOKENS
            return (examples + 1) * around + self.tokens_of(start)
        if examples and own.private is not None:
            words = own.private_text(label, examples).replace(GAP, "")
        else:
            words = own.public_prompt_text(label)
        return self.tokens_of(own.asked(label) + words + own.opening(label))
