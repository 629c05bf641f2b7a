"""The packaged writer: the public language model, which varies a text by writing its end anew."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.datasets.engine import DEFAULT_DECODER
from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.text_api import ShareCallback
from dpsynth_assets.methods.text_form import FREE, TextForm
from dpsynth_assets.models.engines import Provenance
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel


class PublicModelApi:
    """A causal language model in its own document format; varies a text by writing its end anew.

    Args:
        language_model: The public model; loaded when first used.
        label_texts: How each label is written.
        config: Lengths and sampling.
        kind: What decodes, as the base declares it.
        form: What a text has to be. Of a text that is none a variation keeps what one may begin
            with.

    **Source** The API of Xie et al. 2024 paraphrases by instruction; a base model cannot follow
    one, so a variation keeps the first tokens of a text and continues them. How many is drawn anew
    for each variation: the share written anew is even in [degree / 2, 3 degree / 2], at most 1.
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
        self.engine = DecoderEngine(language_model, kind, batch_rows=config.rows_per_forward)
        self._label_texts, self._config, self._form = label_texts, config, form

    @property
    def device(self) -> str:
        """Device on which the model runs."""
        return self.language_model.device

    def prompt(self, label: str) -> list[int]:
        """Tokens that precede a text of the label."""
        text = self._label_texts[label]
        return self.language_model.prompt_ids(text, [], self._config.max_new_tokens)

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """See `TextApi.random`."""
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
        """See `TextApi.vary`."""
        anew = np.random.default_rng(seed).uniform(degree / 2.0, 1.5 * degree, len(texts))
        kept = [self._beginning(*each) for each in zip(texts, anew.tolist(), strict=True)]
        written = self._continued(labels, kept, seed, Provenance.RELEASED, progress)
        return [new or old for new, old in zip(written, texts, strict=True)]

    def _beginning(self, text: str, anew: float) -> list[int]:
        """First tokens of a text; room is left for one new token."""
        ids = self.language_model.text_ids(text)[: self._config.max_new_tokens]
        kept = ids[: min(math.floor(len(ids) * max(0.0, 1.0 - anew)), len(ids) - 1)] if ids else []
        if self._form.schema is None:
            return kept
        return self.engine.constraint(self._form.schema, self._form.text_start).begun(kept)

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
            self.prompt(label) + beginning
            for label, beginning in zip(labels, beginnings, strict=True)
        ]
        limits = tuple(longest - len(beginning) for beginning in beginnings)
        sampling = self._form.constrained(self._config.sampling(seed, limits), beginnings)
        written = self.engine.generate(prompts, sampling, provenance=provenance, progress=progress)
        return [
            self._form.read(
                self.language_model.read_text([*beginning, *new.token_ids])[0], ended=new.finished
            )
            for beginning, new in zip(beginnings, written, strict=True)
        ]
