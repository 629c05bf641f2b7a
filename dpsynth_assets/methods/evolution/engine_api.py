"""Any engine as a writer, told what to write by two prompt files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.prompts import (
    MASKED_SAMPLE,
    SAMPLE,
    WORD_COUNT,
    PromptError,
    PromptFile,
    masked,
)
from dpsynth_assets.methods.evolution.text_api import ShareCallback
from dpsynth_assets.methods.text_form import FREE, TextForm
from dpsynth_assets.models.engines import Engine, Provenance, Sampling

if TYPE_CHECKING:
    from dpsynth_assets.models.engines.protocol import Prompt


class EngineApi:
    """Any engine, told what to write by two prompt files.

    Args:
        engine: Opened engine.
        random_prompt: Template of random texts.
        variation_prompt: Template of variations.
        variables: Variables of each label, by composite label value.
        config: Lengths, sampling and whether messages go through a chat template.
        form: What a text has to be. Whole records are written anew, however short a text was.

    **Source** Xie et al. 2024: random generation with pseudo-classes (`replacement_rules`),
    variations by paraphrasing in a tone or by filling in blanks, with adaptive text lengths.
    """

    def __init__(
        self,
        engine: Engine,
        random_prompt: PromptFile,
        variation_prompt: PromptFile,
        variables: Mapping[str, Mapping[str, str]],
        config: EvolutionConfig,
        form: TextForm = FREE,
    ) -> None:
        self._engine, self._config, self._variables = engine, config, variables
        self._form = replace(form, text_start="")  # Prompt files open no text.
        self._random_prompt, self._variation_prompt = random_prompt, variation_prompt

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """See `TextApi.random`."""
        prompts = [
            self._written(self._random_prompt.messages(self._variables[label], _row_rng(seed, row)))
            for row, label in enumerate(labels)
        ]
        sampling = self._config.sampling(seed, self._config.max_new_tokens)
        return self._texts(prompts, sampling, Provenance.PUBLIC, progress)

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `TextApi.vary`."""
        prompts, limits = [], []
        for row, (text, label) in enumerate(zip(texts, labels, strict=True)):
            rng = _row_rng(seed, row)
            words = self._word_count(text, rng)
            variables = {
                **self._variables[label],
                SAMPLE: text,
                MASKED_SAMPLE: masked(text, degree, rng),
                WORD_COUNT: str(words),
            }
            prompts.append(self._written(self._variation_prompt.messages(variables, rng)))
            limits.append(self._limit(words))
        sampling = self._config.sampling(seed, tuple(limits))
        written = self._texts(prompts, sampling, Provenance.RELEASED, progress)
        return [new or old for new, old in zip(written, texts, strict=True)]

    def _word_count(self, text: str, rng: np.random.Generator) -> int:
        change = round(rng.normal(0.0, self._config.word_count_std))
        return max(1, len(text.split()) + change)

    def _limit(self, words: int) -> int:
        per_word = None if self._form.schema else self._config.tokens_per_word
        longest = self._config.max_new_tokens
        return longest if per_word is None else max(1, min(longest, math.ceil(per_word * words)))

    def _written(self, messages: list[dict[str, str]]) -> "Prompt":
        """One prompt: tokens of a chat template, or contents joined by blank lines."""
        if not self._config.chat:
            return "\n\n".join(message["content"] for message in messages)
        tokenizer = getattr(getattr(self._engine, "language_model", None), "tokenizer", None)
        if tokenizer is None or not tokenizer.chat_template:
            raise PromptError(
                f"Expected a local model with a chat template for chat: true, got "
                f"{self._engine.name}. Drop chat, or take an instruction-tuned model."
            )
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def _texts(
        self,
        prompts: "Sequence[Prompt]",
        sampling: Sampling,
        provenance: Provenance,
        progress: ShareCallback | None,
    ) -> list[str]:
        constrained = self._form.constrained(sampling)
        written = self._engine.generate(
            prompts, constrained, provenance=provenance, progress=progress
        )
        return [self._form.read(each.text.strip(), ended=each.finished) for each in written]


def _row_rng(seed: int, row: int) -> np.random.Generator:
    """Public randomness of one row, whatever the other rows are."""
    return np.random.default_rng([seed, row])
