"""DP fine-tuning of a generator whose only condition is the label: what CTCL builds on."""

from typing import Any

import numpy as np

from dpsynth_assets.methods.candidates import Advice
from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import DpFineTuningConfig, generator_settings
from dpsynth_assets.methods.fine_tuning.generation import STEPS, GeneratorMethod
from dpsynth_assets.methods.fine_tuning.generators import required
from dpsynth_assets.methods.fine_tuning.writing import equal_cells, released_cells
from dpsynth_assets.methods.inputs import PublicInputs


class DpFineTuning(GeneratorMethod[DpFineTuningConfig]):
    """Yue et al. 2023, on an encoder-decoder or a decoder-only model, whole or by LoRA."""

    name = "dp_fine_tuning"
    title = "DP fine-tuning (Yue et al. 2023)"
    paper = (
        "Yue et al. 2023, Synthetic text generation with differential privacy: a simple and "
        "practical recipe"
    )
    arxiv = "2210.14348"
    config_type = DpFineTuningConfig
    advice = Advice(
        defaults=generator_settings,
        unadvised="is ctcl without topics; on Yelp ctcl was better (docs/benchmarks.md)",
        splits=(STEPS,),
    )

    @property
    def public_inputs(self) -> frozenset[str]:
        """The model of the chosen architecture; topics where conditions carry keywords."""
        names = {"public_corpus", self._model_name}
        if self.config.keywords:
            names |= {"topic_model", "text_embedder"}
        return frozenset(names)

    @property
    def follows_topics(self) -> bool:
        """Whether rows follow topics or the released shares of labels."""
        return self.config.keywords or self.config.label_shares == "released"

    @property
    def has_keywords(self) -> bool:
        """Whether the settings ask for keywords."""
        return self.config.keywords

    @property
    def pretrained(self) -> bool:
        """Whether training starts from the public weights."""
        return self.config.pretrained

    @property
    def fine_tunes_language_model(self) -> bool:
        """Whether a decoder is trained, or the base's generator is its language model."""
        decoder = self.config.architecture == "decoder_only" and self.config.prompt_tokens is None
        return decoder or super().fine_tunes_language_model

    def starts_from(self, public: PublicInputs) -> Any:
        """The public model of the chosen architecture."""
        if self.config.architecture == "decoder_only":
            return required(public.language_model, self._model_name)
        return required(public.conditional_generator, self._model_name)

    def cells(self, public: PublicInputs, known: Conditioning, rows: int) -> np.ndarray:
        """Topics, or labels alone, in the proportions of the histogram; or labels equally often."""
        if not self.follows_topics:
            return equal_cells(known, rows)
        cells = released_cells(public, known, rows)
        if not self.config.keywords:
            cells[:, 1] = -1
        return cells

    @property
    def _model_name(self) -> str:
        decoder_only = self.config.architecture == "decoder_only"
        return "public_language_model" if decoder_only else "conditional_generator"
