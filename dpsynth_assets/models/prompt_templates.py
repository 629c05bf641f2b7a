"""Prompts: how public words, labels and private texts become tokens, and how texts are read back.

A prompt is public and becomes tokens as one frame, with a gap for each private text. Private texts
are encoded by themselves and cut by tokens, then laid into the gaps: no text can change how the
frame is read, close a document, or bring a special token, and the length of a prompt is at most the
length of its frame plus the sum of the cuts, regardless of the texts. A frame follows the templates
of a dataset file, or else the document format of the model.

**Source** Amin et al. 2024, appendix E.2 (one example in a user's turn, the answer opened with
public words; the public prompt has a description in the example's place); Amin et al. 2025,
appendix E.4 (one template for all datasets, k examples, the turn's or the fence's end token).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dpsynth_assets.datasets.prompting import PLACEHOLDER

if TYPE_CHECKING:
    from dpsynth_assets.datasets import PrivateDatasetSpec

GAP = "\ufdd0"
"""Marks a private text's place while a frame is written; no character of Unicode text."""

PUBLIC_TEXT = "<text>"
"""Stands in an example's place where a private template is declared and nothing public is."""

TOP_K = 100
"""Likeliest tokens that a text is drawn from where no privacy mechanism draws it."""


class DocumentFormat(NamedTuple):
    """Form of one document: `opening` with its label, text, `closing`, the end token, `separator`.

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


PAPER_PT = DocumentFormat(opening="{label}\n```\n", closing="\n", end="```", separator="\n\n")
"""Format for pretrained (not instruction-tuned) models.

**Source** Amin et al. 2025, appendix E.4.1: the label above each example, a blank line between
examples, generation stopped at the end token ```` ``` ````. We open a fence under every label, so
that the token which ends a document closes something.
"""

PLAIN_PT = DocumentFormat(opening="{label}\n", closing="", end=None, separator="\n\n")
"""For pretrained models whose tokenizer writes the fence with more than one token: the documents
end with the tokenizer's own end-of-sequence token."""


@dataclass(frozen=True, kw_only=True)
class PromptTemplates:
    """The prompt templates of a dataset; public, and part of what a release is.

    Attributes:
        private: Prompt around k examples (`{examples}`, `{label}`, `{schema}`); None: the model's
            document format.
        example: One example (`{example}`, `{label}`).
        separator: Between two examples.
        public: Prompt without private text (`{label}`, `{schema}`); None: the private prompt with
            `public_text` in place of one example.
        public_text: Public text in an example's place (`{label}`, `{schema}`).
        response_start: Public words after every prompt (`{label}`).
        text_start: Public beginning of every text.
        text_end: What closes a text.
        end: Token that ends a text, as text; None: the tokenizer's or the model's own. Where it
            is a line break, a text is cut at its first one, those within private texts become
            blanks, and only the token of the line break alone saves the tokens that follow.
        use_chat_template: Whether the tokenizer's chat template wraps prompts.
        schema: What `{schema}` stands for.
        instruction: What a model with a chat template is asked for in a user's turn (`{label}`), so
            that the prompt begins its answer. A model without one reads the prompt alone.
    """

    private: str | None = None
    example: str = "{example}"
    separator: str = "\n\n"
    public: str | None = None
    public_text: str | None = None
    response_start: str = ""
    text_start: str = ""
    text_end: str = ""
    end: str | None = None
    use_chat_template: bool = False
    schema: str = ""
    instruction: str = ""

    @property
    def ends_with_line(self) -> bool:
        """Says whether the end of a line ends a text, which then has no other line breaks."""
        return self.end is not None and not self.end.strip()

    def to_json(self) -> dict[str, Any]:
        """Plain values by name, by which a charge is known: no instruction changes none."""
        values = asdict(self)
        if not self.instruction:
            del values["instruction"]
        return values

    def private_text(self, label_text: str, examples: int) -> str:
        """The private prompt with a GAP for each of `examples` texts."""
        block = _filled(self.example, {"label": label_text, "example": GAP})
        blocks = self.separator.join([block] * examples)
        words = {"label": label_text, "schema": self.schema, "examples": blocks}
        return _filled(self.private or "", words)

    def public_prompt_text(self, label_text: str) -> str:
        """The public prompt."""
        words = {"label": label_text, "schema": self.schema}
        if self.public is not None:
            return _filled(self.public, words)
        text = _filled(self.public_text or PUBLIC_TEXT, words)
        return self.private_text(label_text, 1).replace(GAP, text)

    def public_example(self, label_text: str) -> list[str]:
        """The public text in an example's place; none where none is declared."""
        if self.public_text is None:
            return []
        return [_filled(self.public_text, {"label": label_text, "schema": self.schema})]

    def public_frame(self, label_text: str) -> str:
        """All public words of a prompt without private text."""
        before = self.public_prompt_text(label_text) if self.public or self.private else ""
        return before + self.opening(label_text)

    def asked(self, label_text: str) -> str:
        """The instruction."""
        return _filled(self.instruction, {"label": label_text})

    def opening(self, label_text: str) -> str:
        """The end of every prompt: the words that open the answer, and the text's start."""
        return _filled(self.response_start, {"label": label_text}) + self.text_start


def declared_templates(spec: "PrivateDatasetSpec") -> PromptTemplates | None:
    """The templates of a dataset file; None where it declares none."""
    if spec.prompt is None:
        return None
    schema = spec.structured.prompt_text if spec.structured and spec.prompt.uses_schema else ""
    return PromptTemplates(**spec.prompt.model_dump(exclude_none=True), schema=schema)


def prompted(language_model: Any, templates: PromptTemplates | None) -> Any:
    """Gives a language model its declared prompts; the model itself where there are none."""
    return language_model if templates is None else PromptedModel(language_model, templates)


def default_templates(
    domain: str, *, labelled: bool, description: str = "", asks: bool = True
) -> PromptTemplates:
    """Writes the prompts of a domain.

    A text stands on one line between quotation marks and the line's end closes it: a quotation mark
    alone would not, because tokenizers join it to the full stop before it. How other forms compare
    on public text is in docs/benchmarks.md, "Prompts".

    Args:
        domain: What the texts are, in a few public words.
        labelled: Whether texts have a label, which then stands before each of them.
        description: What the records are, in a public sentence; may be empty.
        asks: Whether a model with a chat template is asked for a text in it.

    Returns:
        Templates for a plain or an instruction-tuned model: an instruction for the latter; the
        domain, k texts and the opening of one more.

    **Source** Amin et al. 2025, appendix E.4: one template for all datasets, label and text of each
    example, for pretrained models without instructions.
    """
    opening = '{label}: "' if labelled else '"'
    return PromptTemplates(
        private=f"{domain}\n\n{{examples}}\n\n",
        example=f'{opening}{{example}}"',
        public=f"{domain}\n\n",
        response_start=opening,
        text_end='"',
        end="\n",
        instruction=_instruction(domain, description, labelled=labelled) if asks else "",
    )


def _instruction(domain: str, description: str, *, labelled: bool) -> str:
    """Asks for one text in public words."""
    kind = f"{domain} ({{label}})" if labelled else domain
    return " ".join(filter(None, [f"Write one example of {kind}.", description]))


class PromptedModel:
    """A language model that reads and writes texts in templates, or in a document format.

    Everything else (weights, tokenizer, pad token) is the wrapped model's own.

    Args:
        inner: The language model.
        templates: Declared or default templates; None: documents in the format alone.
        form: Format of documents that no template writes; None: that of the model.

    **Privacy** A prompt is its public frame and each text's own tokens, cut. Special tokens and the
    end token are taken out of a text, and line breaks become blanks where a line's end ends a text,
    so a record can neither close its document nor open a turn; what remains of a record is a
    function of that record.
    """

    def __init__(
        self,
        inner: Any,
        templates: PromptTemplates | None = None,
        form: DocumentFormat | None = None,
    ) -> None:
        self._inner, self._form = inner, form
        self._templates = templates or PromptTemplates()
        self._frames: dict[tuple[str, int], list[list[int]]] = {}
        self.end_token_id: int = self._end_token()
        special = () if templates is None else inner.tokenizer.all_special_ids
        self._barred = frozenset({self.end_token_id, *special})

    def __getattr__(self, name: str) -> Any:
        """Looks all else up in the wrapped model."""
        return getattr(self._inner, name)

    def prompt_ids(
        self, label_text: str, examples: Sequence[str], max_example_tokens: int
    ) -> list[int]:
        """Tokens of a prompt, which ends where a new text begins.

        Args:
            label_text: How the label is written; may be empty.
            examples: k private or released texts in order; k = 0 gives the public prompt.
            max_example_tokens: Each example is cut to this many tokens (> 0).

        Returns:
            The prompt, at most as long as with k empty examples plus k x `max_example_tokens`.

        Raises:
            ValueError: The chat template is missing or does not keep the prompt as it is.
        """
        frame = self._frame(label_text, len(examples))
        ids = list(frame[0])
        for text, literal in zip(examples, frame[1:], strict=True):
            own = text.lstrip() if self.ends_with_line else text
            ids += self._text_ids(own)[:max_example_tokens]
            ids += literal
        return ids

    @property
    def ends_with_line(self) -> bool:
        """Says whether the end of a line ends a text."""
        return self._templates.ends_with_line

    def text_ids(self, text: str) -> list[int]:
        """Tokens of a text after a prompt, which ends with the declared start: without it."""
        return self._text_ids(text.strip().removeprefix(self._templates.text_start))

    def document_ids(self, text: str) -> list[int]:
        """Tokens of a text that answers a prompt: the text, its closing, the end token.

        Text and closing are encoded together, as the model would write them. The declared start of
        texts stands in the prompt and is left out.
        """
        own = text.strip().removeprefix(self._templates.text_start)
        return [*self._text_ids(own + self._templates.text_end), self.end_token_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a generated document's tokens: with its declared start, without its end."""
        text: str = self._inner.decode(ids)
        if self._templates.ends_with_line:
            text = text.split("\n", maxsplit=1)[0]
        if not text.strip():
            return ""
        end = self._templates.text_end.strip()
        return self._templates.text_start + text.rstrip().removesuffix(end)

    def read_text(self, generated: Sequence[int]) -> tuple[str, bool]:
        """Text before the first end token, and whether that token was there."""
        ids = list(generated)
        complete = self.end_token_id in ids
        body = ids[: ids.index(self.end_token_id)] if complete else ids
        return self.decode(body).strip(), complete

    def _text_ids(self, text: str) -> list[int]:
        if self._templates.ends_with_line:
            blank = " " if text[:1].isspace() else ""  # stands between the declared start and it
            text = blank + " ".join(text.split())
        return [token for token in self._inner.encode(text) if token not in self._barred]

    def _frame(self, label_text: str, examples: int) -> list[list[int]]:
        """Public tokens before, between and after `examples` texts: `examples` + 1 lists."""
        key = (label_text, examples)
        if key not in self._frames:
            self._frames[key] = self._written_frame(label_text, examples)
        return self._frames[key]

    def _written_frame(self, label_text: str, examples: int) -> list[list[int]]:
        templates = self._templates
        if examples and templates.private is not None:
            return self._literals(templates.private_text(label_text, examples), label_text)
        if not examples and (templates.public or templates.private) is not None:
            return self._literals(templates.public_prompt_text(label_text), label_text)
        return self._format_frame(label_text, examples)

    def _literals(self, text: str, label_text: str) -> list[list[int]]:
        """Encodes the parts of a template around its gaps; special tokens it names are special."""
        gaps = text.count(GAP)
        written = self._as_turn(text) if self._templates.use_chat_template else text
        asked = self._asked(label_text)
        parts = (asked + written + self._templates.opening(label_text)).split(GAP)
        if len(parts) != gaps + 1:
            raise ValueError(
                f"Expected a chat template that writes the prompt once, got {len(parts) - 1} "
                f"examples of {gaps} in it. Drop prompt.use_chat_template and write the turns."
            )
        frame = [self._public_ids(part) for part in parts]
        begin = self._inner.begin_token_id
        if not asked and not self._templates.use_chat_template and begin is not None:
            frame[0].insert(0, begin)
        return frame

    def _format_frame(self, label_text: str, examples: int) -> list[list[int]]:
        """The frame of the document format, the opening of the answer after it.

        Its pieces are encoded one by one. A public text stands in it as a whole document.
        """
        inner, form = self._inner, self._form or self._inner.document_format
        begin = [] if inner.begin_token_id is None else [inner.begin_token_id]
        start = inner.encode(form.opening.replace("{label}", label_text))
        close = [*inner.encode(form.closing), self.end_token_id, *inner.encode(form.separator)]
        opening = self._templates.opening(label_text)
        last = [*start, *(self._public_ids(opening) if opening else ())]
        if examples:
            return [begin + start, *[close + start] * (examples - 1), close + last]
        shown: list[int] = []
        for text in self._templates.public_example(label_text):
            own = [token for token in inner.encode(text) if token != self.end_token_id]
            shown += [*start, *own, *close]
        return [begin + shown + last]

    def _asked(self, label_text: str) -> str:
        """The turn before the answer that the prompt begins; empty for a model without turns."""
        asked = self._templates.asked(label_text)
        return self._as_turn(asked) if asked and self._inner.tokenizer.chat_template else ""

    def _as_turn(self, text: str) -> str:
        if not self._inner.tokenizer.chat_template:
            raise ValueError(
                f"Expected a chat template in the tokenizer of {self._inner.name}, got none. "
                "Drop prompt.use_chat_template, or take an instruction-tuned model."
            )
        turns = [{"role": "user", "content": text}]
        written: str = self._inner.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True
        )
        return written

    def _public_ids(self, text: str) -> list[int]:
        """Tokens of public text; special tokens in it are special."""
        return list(self._inner.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _end_token(self) -> int:
        """The token that ends a text.

        Raises:
            ValueError: The declared end is not one token of this model.
        """
        declared, private = self._templates.end, self._templates.private
        if declared is None:
            own = None if private is None else self._inner.tokenizer.eos_token_id
            return self._inner.end_token_id if own is None else int(own)
        ids = self._public_ids(declared)
        if len(ids) != 1:
            raise ValueError(
                f"Expected prompt.end as one token of {self._inner.name}, got {declared!r}, which "
                f"has {len(ids)}. Name its end-of-turn or end-of-sequence token."
            )
        return ids[0]


def _filled(template: str, words: Mapping[str, str]) -> str:
    """Fills the known placeholders in one pass: what is filled in is not read again."""

    def word(match: re.Match[str]) -> str:
        return words.get(match[1], match[0])

    return PLACEHOLDER.sub(word, template)
