"""Settings of the fine-tuning methods, as they stand in a dataset file."""

from collections.abc import Mapping
from operator import not_
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from dpsynth_assets.datasets.evaluation_section import NextWordShape
from dpsynth_assets.methods.base import CohortTerms, MethodConfig
from dpsynth_assets.methods.rejection_sampling import KEPT_ROWS, RejectionSettings

LANGUAGE_MODEL_SETTINGS: Mapping[str, Any] = {
    "lora_rank": 4,
    "frozen_products": "int8",
    "exact_sums": True,
    "steps": 4,
    "expected_batch_size": 256,
    "clip_bound": 0.3,
    "learning_rate": 0.01,
}
"""Settings where the generator is the base's language model and the dataset file names none: few
trained numbers, few steps and a bound below most gradients' norms, since noise grows with the root
of how many numbers are trained and with the bound."""

ADAPTED_LAYERS = ("q_proj", "v_proj")
"""Layers of a Llama-shaped language model beside which adapters are trained."""

WARMUP_SHARE = 0.05
"""Share of the steps in which the rate rises to its peak; it then falls linearly. CTCL warms up for
100 of 2000 steps (section 4.1.3)."""

WEIGHT_DECAY = 0.1
"""Decoupled, as in CTCL, section 4.1.3."""

ROWS_PER_FORWARD = 128
"""Rows decoded together, where the dataset's engine declares no batch_rows: bounds memory."""

CLASSIFIER_RATE = 0.05
"""Peak learning rate of the linear classifier, chosen on public text: 2,000 reviews of Yelp and
2,000 of AG News, 40 steps of 256, ε = 4 and 1, rates of 0.002 to 0.2. Sentence embeddings have most
of their length in common, so that rates which suit a language model move the offsets of the classes
and never tell them apart: at 0.002 every review of Yelp gets the most frequent class (.47 right),
at 0.05 .53 are right; of AG News .80 and .87."""


class PrivateTrainingConfig(MethodConfig):
    """Settings of every private training. Defaults suit small models and demo cohorts.

    Choices that came later are left out of charges at their defaults (`exclude_if`): equal
    parameters are one release, and what was paid for before is found again.
    """

    constants: ClassVar[Mapping[str, Any]] = {
        "warmup_share": WARMUP_SHARE,
        "weight_decay": WEIGHT_DECAY,
    }

    steps: int = Field(default=40, ge=1, le=1_000_000)
    """Optimizer steps (T, steps); all of them are charged. CTCL takes 2000."""
    expected_batch_size: int = Field(default=256, ge=1, le=10_000_000)
    """Records a step is expected to draw (B, records): each is drawn with probability B / declared
    records, and sums are divided by B for every sample. CTCL takes 4096; larger batches hide
    less of the gradient in noise.
    """
    sampling_probability: float | None = Field(default=None, gt=0, le=1)
    """Probability with which a step draws each record (q, no unit), for cohorts whose number of
    records is not public; a constant that no private count may suggest. expected_batch_size is then
    only what sums are divided by. Empty: B / declared records.
    """
    clip_bound: float = Field(default=1.0, gt=0, le=1e6)
    """Bound on the L2 norm of one record's gradient over all parameters (C)."""
    learning_rate: float = Field(default=2e-3, gt=0, le=10)
    """Peak learning rate of Adam (no unit). The default was chosen on public text for a small
    encoder-decoder; choose another on public text too, since a choice made on private text would
    have to be charged. The linear classifier of downstream_fine_tuning takes 0.05 where nothing is
    said.
    """
    lora_rank: int | None = Field(default=None, ge=1, le=1024)
    """Trains adapters of this rank beside the attention and feed-forward matrices instead of the
    weights (r, no unit). null: all weights, the default unless the generator is the base's language
    model.
    """
    frozen_products: Literal["float32", "int8"] = Field(
        "float32", exclude_if=lambda kind: kind == "float32"
    )
    """Arithmetic of the layers that lora_rank freezes. int8: 8-bit integers on a processor, forward
    and backward, with exact_sums: true alone; the default where the generator is the base's
    language model. On a GPU always float32.
    """
    micro_batch_records: int = Field(default=32, ge=1, le=4096)
    """Records of one forward and backward pass (records): bounds memory, not privacy cost."""
    exact_sums: bool = Field(default=False, exclude_if=not_)
    """true: every record passes through the model alone and clipped gradients are added up in
    float64, exactly, so that the bound on what one record moves is proved, rounding included, and
    workers may share a batch where the dataset has parts; a third as many records a second for a
    small model. false: several share a pass, and sums are float32, where it rests on gradient_slack
    and on the assumption that rounding errors behave as if they were random.
    """
    gradient_slack: float | None = Field(None, ge=0, le=1, exclude_if=lambda value: value is None)
    """Largest move of one record's clipped gradient when the records that share its pass change (a
    share of clip_bound): so much is kept back of the bound for every record that may share a pass.
    Empty: 2^-16, 1.3 times the largest measured in float32. Passes in bfloat16, float16 or TF32
    need a declared value or exact_sums: true. Not used with exact_sums: true.
    """
    checkpoint_minutes: float = Field(default=5.0, gt=0, le=1440)
    """Time between checkpoints (minutes), from which a killed run goes on."""

    @property
    def freezes_weights(self) -> bool:
        """Whether the model's own weights stay as they are."""
        return self.lora_rank is not None

    @property
    def trains_in_integers(self) -> bool:
        """Whether frozen weights multiply as whole numbers, as the exact decoder's do."""
        return self.freezes_weights and self.frozen_products == "int8"


class GeneratorConfig(PrivateTrainingConfig):
    """Settings of every method that fine-tunes a generator."""

    constants: ClassVar[Mapping[str, Any]] = {
        **PrivateTrainingConfig.constants,
        "rows_per_forward": ROWS_PER_FORWARD,
    }

    max_document_tokens: int = Field(default=128, ge=8, le=8192)
    """Documents are cut to this length in training and writing (tokens)."""
    document_type: str = Field(default="", max_length=200)
    """What kind of text the records are, e.g. `restaurant review`: public knowledge, written into
    every condition, or the first line of a language model's prompt, where the base's domain stands
    by default. Empty: not said.
    """
    rows: int = Field(default=1000, ge=1, le=100_000_000)
    """Rows to write unless a launch asks for others (rows); they cost nothing."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Words are drawn from the smallest set of this probability (no unit)."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature (no unit)."""
    rejection: RejectionSettings | None = KEPT_ROWS


def generator_settings(terms: CohortTerms) -> dict[str, Any]:
    """Chooses settings by the declared generator, where the dataset file names none.

    Returns:
        Settings that come before the defaults of the fields, which suit a small encoder-decoder.
    """
    if terms.generator is None or terms.generator.kind != "language_model":
        return {}
    return {**LANGUAGE_MODEL_SETTINGS, "document_type": terms.domain}


def adapted_layers(terms: CohortTerms) -> tuple[str, ...] | None:
    """Layers beside which a generator's adapters are trained; None: all linear ones but the output.

    Those of a Llama-shaped language model; other models may name theirs otherwise.
    """
    if terms.generator is None or terms.generator.kind != "language_model":
        return None
    other = terms.language_model is not None and terms.language_model.kind == "pretrained"
    return None if other else ADAPTED_LAYERS


class CtclConfig(GeneratorConfig):
    """Tan et al. 2025: a conditional generator, steered by a released histogram of topics."""

    method: Literal["ctcl"] = "ctcl"


class DpFineTuningConfig(GeneratorConfig):
    """Yue et al. 2023: a generator conditioned on the label alone."""

    constants: ClassVar[Mapping[str, Any]] = {
        **GeneratorConfig.constants,
        "label_shares": "equal",
        "pretrained": True,
    }
    method: Literal["dp_fine_tuning"] = "dp_fine_tuning"
    architecture: Literal["encoder_decoder", "decoder_only"] = "encoder_decoder"
    """encoder_decoder: the public conditional generator, which may be the base's language model
    (conditional_generator.kind: language_model); the published baseline starts from BART, which was
    never trained on conditions. decoder_only: the public language model, as GPT-2 in the published
    tables.
    """
    keywords: bool = False
    """true: conditions carry the keywords of a record's public topic, as in ctcl, and rows follow
    the released histogram of topics. The ablation between the two methods.
    """


class ResampledConfig(MethodConfig):
    """Yu et al. 2024: rows of another method's corpus, chosen to match the histogram of topics."""

    method: Literal["resampled"] = "resampled"
    corpus: str = Field(default="dp_fine_tuning", pattern=r"^[a-z0-9_]+$")
    """Folder of the method whose published corpus is resampled."""
    rows: int = Field(default=500, ge=1, le=100_000_000)
    """Rows to keep unless a launch asks for others (rows); fewer than the corpus has, or there is
    nothing to choose.
    """


class DownstreamConfig(NextWordShape, PrivateTrainingConfig):
    """DP training of the downstream model itself, without synthetic data."""

    method: Literal["downstream_fine_tuning"] = "downstream_fine_tuning"
    task: Literal["next_word", "classification"] = "next_word"
    """next_word: a small causal model, tested by next-word accuracy. classification: a linear
    classifier of at least two declared labels over the records' public embeddings.
    """

    @model_validator(mode="before")
    @classmethod
    def _rate_of_the_task(cls, settings: Any) -> Any:
        """Fills in the classifier's rate where none was given; a given one stands."""
        if not isinstance(settings, dict) or settings.get("task") != "classification":
            return settings
        return {"learning_rate": CLASSIFIER_RATE, **settings}
