"""Functions that write texts, at random or as variations of a text, without private data.

The public language model writes, or any engine that two prompt files tell what to write.

**Privacy** Random texts come from public words alone; variations from texts that released votes
chose. Prompts are marked `PUBLIC` or `RELEASED` accordingly, so that an endpoint may see them; a
private record never enters one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpsynth_assets.datasets.public_spec import DEFAULT_DECODER
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.evolution.config import (
    ROWS_ON_A_GPU,
    ROWS_PER_FORWARD,
    EvolutionConfig,
)
from dpsynth_assets.methods.evolution.prompts import (
    MASKED_SAMPLE,
    SAMPLE,
    WORD_COUNT,
    PromptError,
    PromptFile,
    masked,
    read_prompt,
)
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.protocol import Engine, Provenance
from dpsynth_assets.models.row_rules import FREE, TextForm

if TYPE_CHECKING:
    from dpsynth_assets.models.engines.protocol import Prompt
    from dpsynth_assets.models.language_model import LanguageModel

ShareCallback = Callable[[float], None]


class Wanted(NamedTuple):
    """Texts to be written: one for each label, like those that are given (None: from nothing)."""

    labels: Sequence[str]
    texts: Sequence[str] | None
    degree: float
    seed: int
    progress: ShareCallback | None


class TextApi(ABC):
    """Writes texts for labels, and texts like other texts."""

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """Writes one text for each label, in their order.

        Args:
            labels: Composite label values, as in `CohortTerms.labels`.
            seed: Public; equal calls give equal texts where the engine keeps seeds.
            progress: Told the share done.
        """
        return self.written(Wanted(labels, None, 1.0, seed, progress))

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
            degree: How much is rewritten, in (0, 1].
            seed: Public.
            progress: Told the share done.
        """
        written = self.written(Wanted(labels, texts, degree, seed, progress))
        return [new or old for new, old in zip(written, texts, strict=True)]

    @abstractmethod
    def written(self, wanted: Wanted) -> list[str]:
        """Writes what is wanted."""


class PublicModelApi(TextApi):
    """A causal language model in its own document format; varies a text by writing its end again.

    Args:
        language_model: The public model; loaded when first used.
        label_texts: How each label is written.
        config: Lengths and sampling.
        kind: What decodes, as the base declares it.
        form: What a text has to be. Of a text that is none a variation keeps what one may begin
            with.

    **Source** The API of Xie et al. 2024 paraphrases by instruction; a base model cannot follow
    one, so a variation keeps the first tokens of a text and continues them. How many is drawn again
    for each variation: the share rewritten is even in [degree / 2, 3 degree / 2], at most 1.
    """

    def __init__(
        self,
        language_model: "LanguageModel",
        label_texts: Mapping[str, str],
        config: EvolutionConfig,
        *,
        kind: str = DEFAULT_DECODER,
        form: TextForm = FREE,
    ) -> None:
        self.language_model = language_model
        rows = ROWS_PER_FORWARD if language_model.device == "cpu" else ROWS_ON_A_GPU
        self.engine = DecoderEngine(language_model, kind, batch_rows=rows)
        self._label_texts, self._config, self._form = label_texts, config, form

    def prompt(self, label: str) -> list[int]:
        """Tokens that precede a text of the label."""
        text = self._label_texts[label]
        return self.language_model.prompt_ids(text, [], self._config.max_new_tokens)

    def written(self, wanted: Wanted) -> list[str]:
        """See `TextApi.written`."""
        labels, texts, degree, seed, progress = wanted
        beginnings: list[list[int]] = [[]] * len(labels)
        if texts is not None:
            anew = np.random.default_rng(seed).uniform(degree / 2.0, 1.5 * degree, len(texts))
            beginnings = [self._beginning(*each) for each in zip(texts, anew.tolist(), strict=True)]
        prompts = [
            self.prompt(label) + beginning
            for label, beginning in zip(labels, beginnings, strict=True)
        ]
        limits = tuple(self._config.max_new_tokens - len(beginning) for beginning in beginnings)
        sampling = self._form.constrained(self._config.sampling(seed, limits), beginnings)
        made = self.engine.generate(
            prompts, sampling, provenance=_provenance(texts), progress=progress
        )
        return [
            self._form.read(
                self.language_model.read_text([*beginning, *new.token_ids])[0], ended=new.finished
            )
            for beginning, new in zip(beginnings, made, strict=True)
        ]

    def _beginning(self, text: str, anew: float) -> list[int]:
        """First tokens of a text; room is left for one new token."""
        ids = self.language_model.text_ids(text)[: self._config.max_new_tokens]
        kept = ids[: min(math.floor(len(ids) * max(0.0, 1.0 - anew)), len(ids) - 1)] if ids else []
        if self._form.schema is None:
            return kept
        return self.engine.constraint(self._form.schema, self._form.text_start).begun(kept)


class EngineApi(TextApi):
    """Any engine, told what to write by two prompt files.

    Args:
        engine: Opened engine.
        random_prompt: Template of random texts.
        variation_prompt: Template of variations.
        variables: Variables of each label, by composite label value.
        config: Lengths and sampling.
        form: What a text has to be. Whole records are rewritten, however short a text was.

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

    def written(self, wanted: Wanted) -> list[str]:
        """See `TextApi.written`."""
        labels, texts, degree, seed, progress = wanted
        prompts: list[Prompt] = []
        for row, label in enumerate(labels):
            rng = np.random.default_rng([seed, row])  # Regardless of the other rows.
            prompt, variables = self._random_prompt, self._variables[label]
            if texts is not None:
                rng.normal()  # Once the spread of {word_count}: later draws stay what they were.
                prompt = self._variation_prompt
                variables = {
                    **variables,
                    SAMPLE: texts[row],
                    MASKED_SAMPLE: masked(texts[row], degree, rng),
                    WORD_COUNT: str(max(1, len(texts[row].split()))),
                }
            prompts.append(prompt.written(variables, rng))
        sampling = self._form.constrained(self._config.sampling(seed, self._config.max_new_tokens))
        made = self._engine.generate(
            prompts, sampling, provenance=_provenance(texts), progress=progress
        )
        return [self._form.read(each.text.strip(), ended=each.finished) for each in made]


def _provenance(texts: Sequence[str] | None) -> Provenance:
    """Prompts are public where no text is shown, and else as released as the texts."""
    return Provenance.PUBLIC if texts is None else Provenance.RELEASED


def open_api(
    config: EvolutionConfig, terms: CohortTerms, public: PublicInputs, form: TextForm = FREE
) -> TextApi:
    """Opens what the settings name; it writes texts of a form.

    Raises:
        ValueError: A model, an engine or a prompt file is missing.
    """
    texts = dict(zip(terms.labels, terms.label_texts, strict=True))
    if config.api == "public_model":
        kind = terms.language_model.writes_by if terms.language_model else DEFAULT_DECODER
        model = public.required("language_model")
        return PublicModelApi(model, texts, config, kind=kind, form=form)
    engine = public.required("engine")
    variables = {name: {"label": text} for name, text in texts.items()}
    return EngineApi(engine, *read_prompts(config, terms), variables, config, form)


def read_prompts(config: EvolutionConfig, terms: CohortTerms) -> tuple[PromptFile, PromptFile]:
    """Reads both prompt files and checks every variable they name against every label.

    Raises:
        PromptError: A file is missing or wrong, or names a variable that a label does not have.
    """
    texts: dict[str, Any] = dict.fromkeys((SAMPLE, MASKED_SAMPLE, WORD_COUNT), "")
    found = []
    for name, source, given in (
        ("random_prompt", config.random_prompt, {}),
        ("variation_prompt", config.variation_prompt, texts),
    ):
        if source is None:
            raise PromptError(f"Expected {name}, got none. Give a prompt file.")
        prompt = read_prompt(source)
        if absent := prompt.missing([{"label": text, **given} for text in terms.label_texts]):
            raise PromptError(
                f"{name}: expected only variables that every label has "
                f"({', '.join(sorted({'label', *given}))}, or set by a rule that applies), got "
                f"{', '.join(sorted(absent))}. Correct the file."
            )
        found.append(prompt)
    return found[0], found[1]
