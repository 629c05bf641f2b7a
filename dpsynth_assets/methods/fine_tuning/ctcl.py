"""CTCL: a lightweight conditional generator and a histogram of universal topics."""

from typing import Any, ClassVar

import numpy as np

from dpsynth_assets.methods.base import PublicInputs
from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import CtclConfig
from dpsynth_assets.methods.fine_tuning.generation import GeneratorMethod
from dpsynth_assets.methods.fine_tuning.generators import required
from dpsynth_assets.methods.fine_tuning.writing import released_cells


class Ctcl(GeneratorMethod):
    """Tan et al. 2025: topic keywords as conditions, rows in the proportions of the histogram."""

    name: ClassVar[str] = "ctcl"
    title: ClassVar[str] = "CTCL: conditional generator and topic histogram"
    paper: ClassVar[str] = (
        "Tan et al. 2025, Synthesizing privacy-preserving text data via finetuning without "
        "finetuning billion-scale LLMs"
    )
    config_type = CtclConfig
    needs_embeddings = True

    def public_inputs(self, config: Any) -> frozenset[str]:
        """Generator and topics, and public text on which the loss that is reported is measured."""
        del config
        return frozenset({"conditional_generator", "topic_model", "text_embedder", "public_corpus"})

    def uses_topics(self, config: Any) -> bool:
        """Rows follow the released histogram."""
        del config
        return True

    def has_keywords(self, config: Any) -> bool:
        """The ten keywords of the record's topic."""
        del config
        return True

    def starts_from(self, config: Any, public: PublicInputs) -> Any:
        """The public conditional generator."""
        del config
        return required(public.conditional_generator, "conditional_generator")

    def cells(
        self, config: Any, public: PublicInputs, known: Conditioning, rows: int
    ) -> np.ndarray:
        """Label and topic in the proportions of the released histogram."""
        del config
        return released_cells(public, known, rows)
