"""Settings of EPSVec, as they stand in a dataset file."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dpsynth_assets.methods.base import MethodConfig
from dpsynth_assets.methods.candidates import DeclaredFacts
from dpsynth_assets.methods.rejection_sampling import KEPT_ROWS, RejectionSettings


class EpsVecConfig(MethodConfig):
    """Banayeeanzade et al. 2026. Defaults suit a small model; theirs stand beside them."""

    method: Literal["epsvec"] = "epsvec"
    use_vectors: bool = Field(
        default=True,
        description="false: rows are written without steering, and no vectors are released.",
    )
    use_fixed_shots: bool = Field(
        default=True,
        description="false: prompts hold no examples, and no histogram is released.",
    )
    private_histogram: bool = Field(
        default=True,
        description=(
            "false: fixed shots are drawn from the candidates at random instead of by a noisy "
            "histogram of the records, which costs nothing. An ablation."
        ),
    )
    prompt: Literal["document", "base", "instruction"] = Field(
        default="document",
        description=(
            "document: the model's own format, or the dataset file's templates. base: the prompts "
            "of the paper's appendix B, for pretrained models. instruction: the same inside the "
            "tokenizer's chat template, for instruction-tuned models."
        ),
    )
    domain: str = Field(
        default="text",
        min_length=1,
        max_length=500,
        description=(
            "What the records are, for base and instruction prompts: public words in which {label} "
            "stands for the label, e.g. `review with a {label} sentiment`."
        ),
    )
    candidates: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description=(
            "Candidates of each label that the model writes without any record (texts). The "
            "histogram has one bin for each: fewer bins stand out of the noise more clearly."
        ),
    )
    candidate_source: Literal["model", "public_corpus"] = Field(
        default="model",
        description=(
            "model: candidates are what the model writes of each label. public_corpus: they are "
            "public documents, the same for every label, where public text is nearer to the "
            "records than what a small model writes."
        ),
    )
    shots: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Fixed shots in a prompt (k, texts of its label). EPSVec takes 2.",
    )
    kept_shots: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description=(
            "Candidates of each label that are kept, the most voted for. More than shots: each "
            "row's prompt draws its shots from them in proportion to their noisy counts, which "
            "costs nothing and lets rows follow a label's mixture. Empty: shots, as in EPSVec."
        ),
    )
    shots_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description=(
            "Share of the method's zCDP budget ρ that the histogram takes, in (0, 1); the vectors "
            "take the rest. EPSVec gives it ε = 0.1 of 5, a share below 0.002."
        ),
    )
    scaffold_temperature: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="Sampling temperature of candidates and negatives (no unit).",
    )
    max_document_tokens: int = Field(
        default=128,
        ge=4,
        le=32_768,
        description="Candidates, fixed shots, negatives and records are cut to this (tokens).",
    )
    layers: tuple[int, ...] | None = Field(
        default=None,
        description=(
            "Decoder layers, from 0, whose vectors are released: all in one release, at a cost of "
            "√L in noise. Empty: the block at the same depth as 18 to 21 of 32, EPSVec's choice."
        ),
    )
    negatives: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description=(
            "Texts of each label that the model writes from the fixed shots and records are "
            "compared with (texts). They cost nothing."
        ),
    )
    pairing: Literal["paired", "mean"] = Field(
        default="paired",
        description=(
            "What is subtracted from a record's states. paired: those of one negative, chosen by "
            "the record's id. mean: the mean of all negatives, which points the same way and "
            "leaves shorter differences, so that less noise is needed."
        ),
    )
    clip_bound: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description=(
            "Bound on the L2 norm of one record's difference at each layer (C, in units of the "
            "residual stream). EPSVec takes 5.5, found on private text. Empty: clip_quantile."
        ),
    )
    clip_quantile: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Quantile of the norms of public documents that bounds each layer (no unit).",
    )
    clip_documents: int = Field(
        default=200,
        ge=10,
        le=1_000_000,
        description="Public documents that the quantile is taken over (documents).",
    )
    vector_records: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description=(
            "Records that vectors are expected to be computed from (records): each is drawn with "
            "probability vector_records / declared records, which amplifies privacy where records "
            "abound. Needs a declared number of records. Empty: all."
        ),
    )
    records_per_pass: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="Records whose states are held at a time (records): bounds memory.",
    )
    rows: int = Field(
        default=1000,
        ge=1,
        le=100_000_000,
        description="Rows to write unless a launch asks for others (rows); they cost nothing.",
    )
    max_new_tokens: int = Field(
        default=128,
        ge=1,
        le=32_768,
        description="Longest row (tokens); length costs nothing either.",
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="Sampling temperature of the rows (no unit). EPSVec takes 1.6 for Llama.",
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Tokens are drawn from the smallest set of this probability (no unit).",
    )
    steering_layers: tuple[int, ...] | None = Field(
        default=None, description="Released layers that are steered, from 0. Empty: all of them."
    )
    strengths: tuple[float, ...] = Field(
        default=(2.0,),
        min_length=1,
        description=(
            "Length of what is added to the residual stream at each steered layer (β): one for all "
            "layers or one each, in strength_unit. 0: not steered. 2 differences brought rows of "
            "a small model nearest to public text that played the records."
        ),
    )
    strength_unit: Literal["difference", "clip_bound", "absolute"] = Field(
        default="difference",
        description=(
            "difference: multiples of how far a label's records lie from what the model writes, "
            "as the noisy vectors tell it: less where they are noisier, nothing where they are "
            "noise; steered layers share it. clip_bound: multiples of the layer's clip bound; "
            "EPSVec's 1.4 is 0.25 of its 5.5. absolute: units of the residual stream, as in the "
            "paper's Table 5."
        ),
    )
    rejection: RejectionSettings | None = KEPT_ROWS

    @property
    def shots_kept(self) -> int:
        """Candidates of each label that are kept as shots."""
        return self.shots if self.kept_shots is None else self.kept_shots

    @property
    def noisy_shots(self) -> bool:
        """Whether fixed shots come from a noisy histogram, which is paid for."""
        return self.use_fixed_shots and self.private_histogram

    @model_validator(mode="after")
    def _layers_differ(self) -> Self:
        for name, layers in (("layers", self.layers), ("steering_layers", self.steering_layers)):
            if layers is not None and (
                not layers or min(layers) < 0 or len(set(layers)) != len(layers)
            ):
                raise ValueError(
                    f"Expected {name} as different numbers from 0, got {list(layers)}. Drop it for "
                    "the default."
                )
        return self

    @model_validator(mode="after")
    def _steered_layers_are_released(self) -> Self:
        if self.layers is not None and not set(self.steering_layers or ()) <= set(self.layers):
            raise ValueError(
                f"Expected steering_layers among layers {list(self.layers)}, got "
                f"{list(self.steering_layers or ())}. Vectors exist for released layers only."
            )
        steered = self.steering_layers or self.layers
        if steered is not None and len(self.strengths) not in (1, len(steered)):
            raise ValueError(
                f"Expected one strength, or one for each of {len(steered)} layers, got "
                f"{len(self.strengths)}."
            )
        return self

    @model_validator(mode="after")
    def _candidates_suffice(self) -> Self:
        if self.use_fixed_shots and not self.shots <= self.shots_kept <= self.candidates:
            raise ValueError(
                f"Expected shots <= kept_shots <= candidates, got {self.shots}, {self.shots_kept} "
                f"and {self.candidates}. Write more candidates, or keep other shots."
            )
        return self


def vector_settings(facts: DeclaredFacts) -> dict[str, Any]:
    """Settings that advice weighs: a hundred texts a label, fewer where many labels share them."""
    return {
        "candidates": facts.each(500, most=100),
        "negatives": facts.each(500, most=100),
        "clip_documents": 200,
        "shots": 1,
        "kept_shots": 12,
        "max_document_tokens": facts.text_tokens,
        "max_new_tokens": facts.text_tokens,
        "rows": facts.rows,
    }
