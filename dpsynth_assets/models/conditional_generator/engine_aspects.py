"""Aspects of public documents, asked of whatever engine a public base declares."""

from collections.abc import Callable, Sequence
from typing import Any

from dpsynth_assets.models.conditional_generator.aspects import aspects_from_language_model
from dpsynth_assets.models.engines import Engine, Provenance, Sampling
from dpsynth_assets.models.engines.protocol import Prompt

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
