"""The scaffold around every text of EPSVec: instructions, fixed shots, and an opened document.

The same scaffold stands before candidates, negatives, private records and rows, so that their
states and texts differ by what is written, not by what is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.text_form import FREE, TextForm
from dpsynth_assets.models.engines import Engine, Generation
from dpsynth_assets.models.prompt_templates import GAP, PromptTemplates, prompted

if TYPE_CHECKING:
    from dpsynth_assets.models.engines.protocol import Prompt

CLOSING = "</end>"
"""Closes a document of the paper's prompts."""

_PREFACE = (
    "Below are several diverse examples of {domain}. Each example is human-written and enclosed "
    "between <begin> and </end> tags. Within each example, the content is structured into {fields}:"
    "\n\n{listed}\n\nHere are the examples:\n"
)
_LABEL_FIELD = '- "Label:" --- describes the category or type of the example\n'
_TEXT_FIELD = '- "Text:" --- contains the corresponding text content'


def appendix_templates(domain: str, *, labelled: bool, chat: bool) -> PromptTemplates:
    """Writes the prompts of the paper as templates.

    Args:
        domain: What the records are; `{label}` stands for the label.
        labelled: Whether examples have a label; without one its field is left out.
        chat: Whether the tokenizer's chat template wraps the prompt as a user's turn, the answer
            opened with the next example's first words.

    **Source** EPSVec, appendix B.3 (zero-shot), B.4 (states) and B.5 (rows), one frame for all.
    """
    preface = _PREFACE.replace("{domain}", domain)
    preface = preface.replace("{fields}", "two fields" if labelled else "one field")
    preface = preface.replace("{listed}", (_LABEL_FIELD if labelled else "") + _TEXT_FIELD)
    opening = "<begin>\nLabel: {label}\nText:" if labelled else "<begin>\nText:"
    return PromptTemplates(
        private=f"{preface}\n{{examples}}\n\n",
        example=f"{opening} {{example}}\n{CLOSING}",
        separator="\n\n",
        public=f"{preface}\n",
        response_start=opening,
        use_chat_template=chat,
    )


@dataclass(frozen=True)
class Scaffold:
    """Writes prompts and reads texts of one method and engine; everything in it is public.

    Attributes:
        label_texts: How each label is written.
        max_shot_tokens: Shots are cut to this many tokens.
        codec: The engine's model, with its templates; None for an engine without tokens.
        templates: What prompts are written in where there is no codec.
        stop: Texts that end a document.
        form: What a document has to be.
    """

    label_texts: tuple[str, ...]
    max_shot_tokens: int
    codec: Any | None
    templates: PromptTemplates | None
    stop: tuple[str, ...] = ()
    form: TextForm = FREE

    def prompt(self, label: int, shots: Sequence[str]) -> "Prompt":
        """The prompt after which the model writes one more text of a label."""
        text = self.label_texts[label]
        if self.codec is not None:
            ids: list[int] = self.codec.prompt_ids(text, list(shots), self.max_shot_tokens)
            return ids
        if self.templates is None:
            raise ValueError(
                "Expected templates for an engine without a tokenizer here, got none. Set prompt "
                "to base or instruction."
            )
        return _as_text(self.templates, text, shots)

    def prefix(self, label: int, shots: Sequence[str]) -> list[int]:
        """Tokens before a text whose states are read, the model's begin token left off."""
        ids = list(self._tokens.prompt_ids(self.label_texts[label], shots, self.max_shot_tokens))
        begin = self._tokens.begin_token_id
        return ids[1:] if ids and ids[0] == begin else ids

    def text_ids(self, text: str, max_tokens: int) -> list[int]:
        """A text's own tokens, cut; none for a text without a word."""
        return list(self._tokens.encode(text))[:max_tokens] if text.strip() else []

    def read(self, generation: Generation) -> str:
        """The text that was written, without what closes it; blank where none of the form was."""
        return self.form.read(self._written(generation), ended=generation.finished)

    def _written(self, generation: Generation) -> str:
        if self.codec is not None and generation.token_ids and CLOSING not in self.stop:
            text: str = self.codec.read_text(list(generation.token_ids))[0]
            return text.strip()
        return generation.text.strip()

    @property
    def _tokens(self) -> Any:
        if self.codec is None:
            raise ValueError("Expected an engine with a tokenizer here, got an endpoint.")
        return self.codec


def scaffold_of(config: EpsVecConfig, terms: CohortTerms, engine: Engine) -> Scaffold:
    """The scaffold that settings ask for, in the tokens of the engine's model.

    Raises:
        ValueError: The templates do not fit the model (no chat template, unknown end token).
    """
    templates, stop = terms.prompts, tuple[str, ...]()
    if templates is not None and templates.ends_with_line:
        stop = ("\n",)
    if config.prompt != "document":
        templates = appendix_templates(
            config.domain, labelled=any(terms.label_texts), chat=config.prompt == "instruction"
        )
        stop = (CLOSING,)
    model = getattr(engine, "language_model", None)
    return Scaffold(
        label_texts=terms.label_texts,
        max_shot_tokens=config.max_document_tokens,
        codec=None if model is None else prompted(model, templates),
        templates=templates,
        stop=stop,
        form=TextForm.of(terms.json_schema, templates, terms.label_texts),
    )


def _as_text(templates: PromptTemplates, label_text: str, shots: Sequence[str]) -> str:
    """A prompt as text; shots stand in its gaps, each once."""
    opening, asked = templates.opening(label_text), templates.asked(label_text)
    before = f"{asked}\n\n" if asked else ""
    if not shots:
        return before + templates.public_prompt_text(label_text) + opening
    parts = templates.private_text(label_text, len(shots)).split(GAP)
    pairs = zip(parts, [*shots, ""], strict=True)
    return before + "".join(part + shot for part, shot in pairs) + opening
