"""CTCL, which fine-tunes a generator by topics and labels, and what it builds on, by labels."""

from dpsynth_assets.methods.candidates import (
    FINE_TUNED,
    NUMBER,
    TOPICS,
    Advice,
    Candidate,
    Choice,
    DeclaredFacts,
)
from dpsynth_assets.methods.fine_tuning.config import (
    CtclConfig,
    DpFineTuningConfig,
    generator_settings,
)
from dpsynth_assets.methods.fine_tuning.generation import STEPS, GeneratorMethod

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
    def has_keywords(self) -> bool:
        """Whether the settings ask for keywords."""
        return self.config.keywords

    @property
    def decoder_only(self) -> bool:
        """Whether the base's language model is trained instead of its generator."""
        return self.config.architecture == "decoder_only"
