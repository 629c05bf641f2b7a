"""DP fine-tuning of a generator whose only condition is the label: what CTCL builds on."""

from typing import Any, ClassVar

import numpy as np

from dpsynth_assets.methods.base import PublicInputs
from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import DpFineTuningConfig
from dpsynth_assets.methods.fine_tuning.generation import GeneratorMethod
from dpsynth_assets.methods.fine_tuning.generators import required
from dpsynth_assets.methods.fine_tuning.writing import equal_cells, released_cells


class DpFineTuning(GeneratorMethod):
    """Yue et al. 2023, on an encoder-decoder or a decoder-only model, whole or by LoRA."""

    name: ClassVar[str] = "dp_fine_tuning"
    title: ClassVar[str] = "DP fine-tuning (Yue et al. 2023)"
    paper: ClassVar[str] = (
        "Yue et al. 2023, Synthetic text generation with differential privacy: a simple and "
        "practical recipe"
    )
    config_type = DpFineTuningConfig

    def public_inputs(self, config: Any) -> frozenset[str]:
        """The model of the chosen architecture; topics where conditions carry keywords."""
        names = {"public_corpus", _model_name(config)}
        if config.keywords:
            names |= {"topic_model", "text_embedder"}
        return frozenset(names)

    def uses_topics(self, config: Any) -> bool:
        """Only where rows follow topics or the released shares of labels."""
        return bool(config.keywords or config.label_shares == "released")

    def has_keywords(self, config: Any) -> bool:
        """None, unless the settings ask for them."""
        return bool(config.keywords)

    def starts_from(self, config: Any, public: PublicInputs) -> Any:
        """The public model of the chosen architecture."""
        if config.architecture == "decoder_only":
            return required(public.language_model, _model_name(config))
        return required(public.conditional_generator, _model_name(config))

    def cells(
        self, config: Any, public: PublicInputs, known: Conditioning, rows: int
    ) -> np.ndarray:
        """Topics, or labels alone, in the proportions of the histogram; or labels equally often."""
        if not self.uses_topics(config):
            return equal_cells(known, rows)
        cells = released_cells(public, known, rows)
        if not config.keywords:
            cells[:, 1] = -1
        return cells


def _model_name(config: Any) -> str:
    decoder_only = config.architecture == "decoder_only"
    return "public_language_model" if decoder_only else "conditional_generator"
