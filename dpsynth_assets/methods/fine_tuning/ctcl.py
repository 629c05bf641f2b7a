"""CTCL: a lightweight conditional generator and a histogram of universal topics."""

from typing import Any

import numpy as np

from dpsynth_assets.methods.candidates import (
    FINE_TUNED,
    NUMBER,
    TOPICS,
    Advice,
    Candidate,
    Choice,
    DeclaredFacts,
)
from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import CtclConfig, generator_settings
from dpsynth_assets.methods.fine_tuning.generation import STEPS, GeneratorMethod
from dpsynth_assets.methods.fine_tuning.generators import required
from dpsynth_assets.methods.fine_tuning.writing import released_cells
from dpsynth_assets.methods.inputs import PublicInputs

TOPIC_NOISE = Choice(
    place=("topic_histogram", "noise_std"),
    splits="topic histogram and fine-tuning",
    values=(3, 10, 30),
)


def _of_language_model(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """The base's language model, fine-tuned at the settings that suit it."""
    settings = {"max_document_tokens": facts.text_tokens, "rows": facts.rows}
    asks = f"{NUMBER}; topic_histogram"
    return (Candidate(line="ctcl", settings=settings, declared=TOPICS, base=FINE_TUNED, asks=asks),)


class Ctcl(GeneratorMethod[CtclConfig]):
    """Tan et al. 2025: topic keywords as conditions, rows in the proportions of the histogram."""

    name = "ctcl"
    title = "CTCL: conditional generator and topic histogram"
    paper = (
        "Tan et al. 2025, Synthesizing privacy-preserving text data via finetuning without "
        "finetuning billion-scale LLMs"
    )
    arxiv = "2503.12347"
    config_type = CtclConfig
    advice = Advice(
        defaults=generator_settings, candidates=_of_language_model, splits=(STEPS, TOPIC_NOISE)
    )

    @property
    def public_inputs(self) -> frozenset[str]:
        """Generator and topics, and public text on which the loss that is reported is measured."""
        return frozenset({"conditional_generator", "topic_model", "text_embedder", "public_corpus"})

    @property
    def follows_topics(self) -> bool:
        """Rows follow the released histogram."""
        return True

    @property
    def has_keywords(self) -> bool:
        """The ten keywords of the record's topic."""
        return True

    def starts_from(self, public: PublicInputs) -> Any:
        """The public conditional generator."""
        return required(public.conditional_generator, "conditional_generator")

    def cells(self, public: PublicInputs, known: Conditioning, rows: int) -> np.ndarray:
        """Label and topic in the proportions of the released histogram."""
        return released_cells(public, known, rows)
