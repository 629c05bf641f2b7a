"""Settings of EPSVec, as they stand in a dataset file."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpsynth_assets.datasets.fields import Refusal
from dpsynth_assets.methods.base import MethodConfig
from dpsynth_assets.methods.capabilities import DeclaredFacts
from dpsynth_assets.methods.rejection_sampling import KEPT_ROWS, RejectionSettings

CANDIDATES = "candidate_pool"
SHOTS = "fixed_shots"
NEGATIVES = "negative_set"
VECTORS = "dataset_vectors"

SCAFFOLD_TEMPERATURE = 1.0
"""Sampling temperature of candidates and negatives: what the model writes, as it writes it."""

CLIP_QUANTILE = 0.95
"""Quantile of the norms of public documents that bounds each layer: few are clipped, where the
paper found its bound of 5.5 on private text (errata B-003.6)."""

RECORDS_PER_PASS = 64
"""Records whose states are held at a time: bounds memory."""


class EpsVecConfig(MethodConfig):
    """Banayeeanzade et al. 2026. Defaults suit a small model; theirs are next to them."""

    constants: ClassVar[Mapping[str, Any]] = {
        "private_histogram": True,
        "prompt": "document",
        "domain": "text",
        "scaffold_temperature": SCAFFOLD_TEMPERATURE,
        "clip_bound": None,
        "clip_quantile": CLIP_QUANTILE,
        "records_per_pass": RECORDS_PER_PASS,
        "steering_layers": None,
    }
    method: Literal["epsvec"] = "epsvec"
    use_vectors: bool = True
    """false: rows are written without steering, and no vectors are released."""
    use_fixed_shots: bool = True
    """false: prompts hold no examples, and no histogram is released."""
    candidates: int = Field(default=100, ge=1, le=100_000)
    """Candidates of each label that the model writes without any record (texts). The histogram has
    one bin for each: fewer bins stand out of the noise more clearly.
    """
    candidate_source: Literal["model", "public_corpus"] = "model"
    """model: candidates are what the model writes of each label. public_corpus: they are public
    documents, the same for every label, where public text is nearer to the records than what a
    small model writes.
    """
    shots: int = Field(default=2, ge=1, le=64)
    """Fixed shots in a prompt (k, texts of its label). EPSVec takes 2."""
    kept_shots: int | None = Field(default=None, ge=1, le=4096)
    """Candidates of each label that are kept, the most voted for. More than shots: each row's
    prompt draws its shots from them in proportion to their noisy counts, which costs nothing and
    lets rows follow a label's mixture. Empty: shots, as in EPSVec.
    """
    shots_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the method's zCDP budget ρ that the histogram takes, in (0, 1); the vectors take the
    rest. EPSVec gives it ε = 0.1 of 5, a share below 0.002.
    """
    max_document_tokens: int = Field(default=128, ge=4, le=32_768)
    """Candidates, fixed shots, negatives and records are cut to this (tokens)."""
    layers: tuple[int, ...] | None = None
    """Decoder layers, from 0, whose vectors are released: all in one release, at a cost of √L in
    noise. Empty: the block at the same depth as 18 to 21 of 32, EPSVec's choice.
    """
    negatives: int = Field(default=100, ge=1, le=100_000)
    """Texts of each label that the model writes from the fixed shots and records are compared with
    (texts). They cost nothing.
    """
    pairing: Literal["paired", "mean"] = "paired"
    """What is subtracted from a record's states. paired: those of one negative, chosen by the
    record's id. mean: the mean of all negatives, which points the same way and leaves shorter
    differences, so that less noise is needed.
    """
    clip_documents: int = Field(default=200, ge=10, le=1_000_000)
    """Public documents that bound each layer's differences (documents)."""
    vector_records: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Records that vectors are expected to be computed from (records): each is drawn with
    probability vector_records / declared records, which amplifies privacy where records abound.
    Needs a declared number of records. Empty: all.
    """
    rows: int = Field(default=1000, ge=1, le=100_000_000)
    """Rows to write unless a launch asks for others (rows); they cost nothing."""
    max_new_tokens: int = Field(default=128, ge=1, le=32_768)
    """Longest row (tokens); length costs nothing either."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature of the rows (no unit). EPSVec takes 1.6 for Llama."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Tokens are drawn from the smallest set of this probability (no unit)."""
    strengths: tuple[float, ...] = Field(default=(2.0,), min_length=1)
    """Length of what is added to the residual stream at each released layer (β): one for all layers
    or one each, in strength_unit. 0: not steered. 2 differences brought rows of a small model
    nearest to public text that played the records.
    """
    strength_unit: Literal["difference", "clip_bound", "absolute"] = "difference"
    """difference: multiples of how far a label's records lie from what the model writes, as the
    noisy vectors tell it: less where they are noisier, nothing where they are noise; steered layers
    share it. clip_bound: multiples of the layer's clip bound; EPSVec's 1.4 is 0.25 of its 5.5.
    absolute: units of the residual stream, as in the paper's Table 5.
    """
    rejection: RejectionSettings | None = KEPT_ROWS

    @property
    def shots_kept(self) -> int:
        """Candidates of each label that are kept as shots."""
        return self.shots if self.kept_shots is None else self.kept_shots

    def refusals(self) -> Iterator[Refusal]:
        """Layers, strengths and shots that do not go together."""
        layers = self.layers
        if layers is not None and (not layers or min(layers) < 0 or len({*layers}) < len(layers)):
            expected = "distinct layer numbers of 0 or more"
            yield Refusal("layers", expected, "Drop `layers` for the default.", str(list(layers)))
        if layers is not None and len(self.strengths) not in (1, len(layers)):
            expected = f"one strength, or one for each of {len(layers)} layers"
            yield Refusal("strengths", expected, "Correct one of them.", str(len(self.strengths)))
        if self.use_fixed_shots and not self.shots <= self.shots_kept <= self.candidates:
            got = f"{self.shots}, {self.shots_kept} and {self.candidates}"
            remedy = "Raise candidates, or lower shots or kept_shots."
            yield Refusal("candidates", "shots <= kept_shots <= candidates", remedy, got)


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
