"""Aspects of public documents, asked of an engine and read from its free answer."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from pair_training.keywords import document_keywords

from dpsynth_assets.models.conditional_generator.encoding import DOCUMENT_TYPE, KEYWORDS
from dpsynth_assets.models.engines.protocol import Engine, Prompt, Provenance, Sampling

MAX_ASPECTS = 10
MAX_VALUE_CHARACTERS = 300
_ASPECT_LINE = re.compile(
    r"[\s>*#•\d.)-]*(?P<name>[^\W\d_][\w /&'-]{0,39}?)[\s*_]*:(?!//)(?P<value>.*)"
)


def parse_aspects(answer: str) -> dict[str, str]:
    """Reads `Aspect: value` lines from a language model's answer.

    Bullets, numbers, Markdown emphasis and JSON-like brackets around values are taken off; lines
    without a colon that follow an aspect without a value are read as that aspect's list.

    Returns:
        At most ten aspects in order of appearance; the names of the document type and of the
        keywords in their usual spelling. Empty if the answer holds none.
    """
    aspects: dict[str, list[str]] = {}
    name = None
    for line in answer.splitlines():
        found = _ASPECT_LINE.fullmatch(line)
        if found is not None:
            name = _usual_name(found["name"])
            value = _plain(found["value"])
            if name not in aspects and len(aspects) < MAX_ASPECTS:
                aspects[name] = [value] if value else []
        elif name in aspects and _continues(line, aspects[name]):
            aspects[name].append(_plain(line))
    joined = {name: ", ".join(values)[:MAX_VALUE_CHARACTERS] for name, values in aspects.items()}
    return {name: value for name, value in joined.items() if value}


def _continues(line: str, values: Sequence[str]) -> bool:
    """Says whether a line without a name is a value: first after a bare name, or a list item."""
    return bool(line.strip()) and (not values or re.match(r"\s*[-*•]", line) is not None)


def _usual_name(name: str) -> str:
    words = " ".join(name.split()).strip()
    folded = words.casefold()
    if folded in {"keyword", "keywords", "key words", "key terms"}:
        return KEYWORDS
    return DOCUMENT_TYPE if folded in {"document type", "type", "type of document"} else words


def _plain(value: str) -> str:
    """A value without list markers, emphasis, brackets and quotes."""
    value = re.sub(r"^\s*(?:[-•]|\d+[.)])\s+", "", value)
    return (
        " ".join(re.sub(r"[*_`\[\]{}\"“”]+", " ", value).split()).rstrip(" .,;").replace(" ,", ",")
    )


def aspect_prompt(document: str) -> str:
    """Asks a language model to describe one public document.

    **Source**: after Tan et al. 2025, Table 1: any domain, any model, document type and keywords
    among the aspects.
    """
    return (
        "Read the document and say what kind of text it is, in several aspects: for example tone, "
        "style, purpose, audience. Two of them must be the document type and the keywords.\n"
        "Write one aspect a line, as `Aspect: value`, and nothing else.\n\n"
        f"Document:\n{document}\n\nDocument Type:"
    )


def aspects_from_language_model(
    documents: Sequence[str],
    ask: Callable[[list[str]], list[str]],
    max_document_characters: int = 4000,
) -> list[dict[str, str]]:
    """Aspects of public documents as a language model sees them.

    Args:
        documents: N public documents; private ones are never sent to a model.
        ask: Answers N prompts with N texts.
        max_document_characters: Longer documents are cut before they are shown.

    Returns:
        N mappings of aspect to value. A document whose answer holds no keywords gets its own most
        telling words instead, so that every mapping has the aspect `Keywords`.

    Raises:
        ValueError: `ask` gave another number of answers.

    **Source**: Tan et al. 2025, section 3.1, pretraining data curation.
    """
    answers = ask([aspect_prompt(text[:max_document_characters]) for text in documents])
    if len(answers) != len(documents):
        raise ValueError(
            f"Expected one answer for each of {len(documents)} documents, got {len(answers)}."
        )
    parsed = [parse_aspects(f"{DOCUMENT_TYPE}:{_without_echo(text)}") for text in answers]
    words = document_keywords(documents)
    return [
        aspects if KEYWORDS in aspects else {**aspects, KEYWORDS: ", ".join(own)}
        for aspects, own in zip(parsed, words, strict=True)
    ]


def _without_echo(answer: str) -> str:
    """The answer without a repeated `Document Type:`, which the prompt has begun already.

    An answer that starts with another aspect is put on a line of its own.
    """
    first = answer.lstrip().split("\n", 1)[0]
    return f"\n{answer}" if _ASPECT_LINE.fullmatch(first) else answer


ANSWER_TOKENS = 160
"""Room for ten short lines; a longer answer keeps the aspects that it had begun."""

DOCUMENTS_AT_ONCE = 1024
"""Documents whose prompts are in memory together."""

ProgressCallback = Callable[[float, str], None]


def aspects_by_engine(
    documents: Sequence[str], engine: Engine, progress: ProgressCallback | None = None
) -> list[dict[str, str]]:
    """Has a language model describe each public document.

    Answers are greedy, so that the same model says the same of the same documents.

    Args:
        documents: N public documents.
        engine: Runs the model; an endpoint may be asked too, since nothing here is private.
        progress: Called with the share done.

    Returns:
        N mappings of aspect to value, `Keywords` among them.

    Raises:
        EngineError: The engine failed.

    **Privacy** Public documents only. A private record's condition never comes from here: its free
    text would be a function of the record that nothing has paid for (Tan et al. 2025, appendix I).

    **Source** Tan et al. 2025, section 3.1: Gemma-2-2B describes the pretraining documents.
    """
    found: list[dict[str, str]] = []
    for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
        part = documents[start : start + DOCUMENTS_AT_ONCE]
        if progress is not None:
            progress(start / len(documents), f"{start} of {len(documents)} documents described")
        found += aspects_from_language_model(part, lambda prompts: _answers(engine, prompts))
    return found


def _answers(engine: Engine, prompts: list[str]) -> list[str]:
    written = engine.generate(
        [_prompt(engine, text) for text in prompts],
        Sampling(temperature=0.0, max_new_tokens=ANSWER_TOKENS),
        provenance=Provenance.PUBLIC,
    )
    return [each.text for each in written]


def _prompt(engine: Engine, text: str) -> Prompt:
    """Tokens in the model's chat template, where it runs here and has one; else the text."""
    tokenizer: Any = getattr(getattr(engine, "language_model", None), "tokenizer", None)
    if tokenizer is None or not tokenizer.chat_template:
        return text
    message = [{"role": "user", "content": text}]
    return list(
        tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    )
