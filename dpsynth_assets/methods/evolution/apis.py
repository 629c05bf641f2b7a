"""What writes texts: at random for a label, or as a variation of a text. All of it is public.

Two kinds: the public language model, which varies a text by writing its end anew (`PublicModelApi`,
the embedded default), and any engine told by prompt files (`EngineApi`).

**Privacy** Random texts come from public words alone; variations from texts that released votes
chose. Prompts are marked `PUBLIC` or `RELEASED` accordingly, so that an endpoint may see them; a
private record never enters one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpsynth_assets.datasets import LABEL_SEPARATOR
from dpsynth_assets.methods.base import CohortTerms, PublicInputs
from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.prompts import (
    MASKED_SAMPLE,
    SAMPLE,
    WORD_COUNT,
    PromptError,
    PromptFile,
    masked,
    read_prompt,
)
from dpsynth_assets.models.engines import Engine, Provenance, Sampling

if TYPE_CHECKING:
    from dpsynth_assets.models.engines.protocol import Prompt
    from dpsynth_assets.models.language_model import LanguageModel

ShareCallback = Callable[[float], None]


class RandomApi(Protocol):
    """Writes texts without a text to start from."""

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """Writes one text for each label, in their order.

        Args:
            labels: Composite label values, as in `CohortTerms.labels`.
            seed: Public; equal calls give equal texts where the engine keeps seeds.
            progress: Told the share done.
        """


class VariationApi(Protocol):
    """Writes texts like other texts."""

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """Writes one variation of each text; a text itself where nothing else came out.

        Args:
            texts: Released texts.
            labels: Composite label value of each.
            degree: How much is written anew, in (0, 1].
            seed: Public.
            progress: Told the share done.
        """


class TextApi(RandomApi, VariationApi, Protocol):
    """Both."""


class PublicModelApi:
    """A causal language model in its own document format; varies a text by writing its end anew.

    Args:
        language_model: The public model; loaded when first used.
        label_texts: How each label is written.
        config: Lengths and sampling.

    **Source** The API of Xie et al. 2024 paraphrases by instruction; a base model cannot follow
    one, so a variation keeps the first tokens of a text and continues them. How many is drawn anew
    for each variation: the share written anew is even in [degree / 2, 3 degree / 2], at most 1.
    """

    def __init__(
        self,
        language_model: "LanguageModel",
        label_texts: Mapping[str, str],
        config: EvolutionConfig,
    ) -> None:
        from dpsynth_assets.models.engines.transformers_engine import TransformersEngine

        self._model, self._label_texts, self._config = language_model, label_texts, config
        self._engine = TransformersEngine(language_model, batch_rows=config.rows_per_forward)

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """See `RandomApi.random`."""
        return self._continued(labels, [[]] * len(labels), seed, Provenance.PUBLIC, progress)

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `VariationApi.vary`."""
        anew = np.random.default_rng(seed).uniform(degree / 2.0, 1.5 * degree, len(texts))
        kept = [self._beginning(*each) for each in zip(texts, anew.tolist(), strict=True)]
        written = self._continued(labels, kept, seed, Provenance.RELEASED, progress)
        return [new or old for new, old in zip(written, texts, strict=True)]

    def _beginning(self, text: str, anew: float) -> list[int]:
        """First tokens of a text; room is left for one new token."""
        ids = self._model.encode(text)[: self._config.max_new_tokens]
        return ids[: min(math.floor(len(ids) * max(0.0, 1.0 - anew)), len(ids) - 1)] if ids else []

    def _continued(
        self,
        labels: Sequence[str],
        beginnings: Sequence[list[int]],
        seed: int,
        provenance: Provenance,
        progress: ShareCallback | None,
    ) -> list[str]:
        """Whole texts: each beginning and what the model makes of it."""
        longest = self._config.max_new_tokens
        prompts = [
            self._model.prompt_ids(self._label_texts[label], [], longest) + beginning
            for label, beginning in zip(labels, beginnings, strict=True)
        ]
        limits = tuple(longest - len(beginning) for beginning in beginnings)
        sampling = _sampling(self._config, seed, limits)
        written = self._engine.generate(prompts, sampling, provenance=provenance, progress=progress)
        return [
            self._model.read_text([*beginning, *new.token_ids])[0]
            for beginning, new in zip(beginnings, written, strict=True)
        ]


class EngineApi:
    """Any engine, told what to write by two prompt files.

    Args:
        engine: Opened engine.
        random_prompt: Template of random texts.
        variation_prompt: Template of variations.
        variables: Variables of each label, by composite label value.
        config: Lengths, sampling and whether messages go through a chat template.

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
    ) -> None:
        self._engine, self._config, self._variables = engine, config, variables
        self._random_prompt, self._variation_prompt = random_prompt, variation_prompt

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """See `RandomApi.random`."""
        prompts = [
            self._written(self._random_prompt.messages(self._variables[label], _row_rng(seed, row)))
            for row, label in enumerate(labels)
        ]
        sampling = _sampling(self._config, seed, self._config.max_new_tokens)
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
        """See `VariationApi.vary`."""
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
        sampling = _sampling(self._config, seed, tuple(limits))
        written = self._texts(prompts, sampling, Provenance.RELEASED, progress)
        return [new or old for new, old in zip(written, texts, strict=True)]

    def _word_count(self, text: str, rng: np.random.Generator) -> int:
        change = round(rng.normal(0.0, self._config.word_count_std))
        return max(1, len(text.split()) + change)

    def _limit(self, words: int) -> int:
        per_word = self._config.tokens_per_word
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
        written = self._engine.generate(prompts, sampling, provenance=provenance, progress=progress)
        return [generation.text.strip() for generation in written]


def open_api(config: EvolutionConfig, terms: CohortTerms, public: PublicInputs) -> TextApi:
    """Opens what the settings name.

    Raises:
        ValueError: A model, an engine or a prompt file is missing.
    """
    if config.api == "public_model":
        if public.language_model is None:
            raise ValueError("Expected the public language model, got none. Materialise it first.")
        texts = dict(zip(terms.labels, terms.label_texts, strict=True))
        return PublicModelApi(public.language_model, texts, config)
    if public.engine is None:
        raise ValueError("Expected the engine of the dataset file, got none. Declare engine.")
    random_prompt, variation_prompt = read_prompts(config, terms)
    variables = label_variables(config, terms)
    return EngineApi(public.engine, random_prompt, variation_prompt, variables, config)


def label_variables(config: EvolutionConfig, terms: CohortTerms) -> dict[str, dict[str, str]]:
    """What prompt files may say about each label.

    Raises:
        PromptError: There are more or fewer `prompt_variables` than label columns.
    """
    names = config.prompt_variables
    variables: dict[str, dict[str, str]] = {}
    for label, text in zip(terms.labels, terms.label_texts, strict=True):
        values = label.split(LABEL_SEPARATOR)
        if names and len(names) != len(values):
            raise PromptError(
                f"Expected one name in prompt_variables for each of {len(values)} label columns, "
                f"got {len(names)}. Name them in the order of columns.labels."
            )
        variables[label] = {"label": text, **dict(zip(names, values, strict=False))}
    return variables


def read_prompts(config: EvolutionConfig, terms: CohortTerms) -> tuple[PromptFile, PromptFile]:
    """Reads both prompt files and checks every variable they name against every label.

    Raises:
        PromptError: A file is missing or wrong, or names a variable that a label does not have.
    """
    known = list(label_variables(config, terms).values())
    texts: dict[str, Any] = dict.fromkeys((SAMPLE, MASKED_SAMPLE, WORD_COUNT), "")
    found = []
    for name, given in (("random_prompt", {}), ("variation_prompt", texts)):
        source = getattr(config, name)
        if source is None:
            raise PromptError(f"Expected {name}, got none. Give a prompt file.")
        prompt = read_prompt(source)
        if absent := prompt.missing([{**label, **given} for label in known]):
            raise PromptError(
                f"{name}: expected only variables that every label has "
                f"({', '.join(sorted({*known[0], *given}))}, or set by a rule that applies), got "
                f"{', '.join(sorted(absent))}. Set prompt_variables, or correct the file."
            )
        found.append(prompt)
    return found[0], found[1]


def _sampling(config: EvolutionConfig, seed: int, limits: int | tuple[int, ...]) -> Sampling:
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=limits,
        seed=seed,
    )


def _row_rng(seed: int, row: int) -> np.random.Generator:
    """Public randomness of one row, whatever the other rows are."""
    return np.random.default_rng([seed, row])
