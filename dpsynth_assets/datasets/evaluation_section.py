"""The scoring of corpora in a dataset file: how many rows, which models, which constants."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from dpsynth_assets.datasets.fields import IS_PATH, Declaration, Refusal
from dpsynth_assets.datasets.public_spec import TextEmbedderSpec


class EncoderSpec(Declaration):
    """An encoder that is fine-tuned on every corpus, whole, to name the labels of real records.

    It stops by a tenth of the rows it is trained on, never by those it is tested on.
    """

    model: str | None = None
    """Hub id or folder of an encoder in the transformers format; none: the all-MiniLM-L6-v2 that
    ships as a Python package."""
    max_tokens: int = Field(128, ge=8, le=8192)
    """Tokens of a text that are read, in [8, 8192]."""
    batch: int = Field(32, ge=1)
    """Rows of a step (>= 1)."""
    learning_rates: tuple[Annotated[float, Field(gt=0)], ...] = Field((1e-4,), min_length=1)
    """Learning rates that are tried (> 0); the head learns ten times as fast."""
    weight_decay: float = Field(0.0, ge=0)
    """Of AdamW (>= 0)."""
    epochs: int = Field(10, ge=1)
    """Most passes over the rows (>= 1)."""
    patience: int = Field(4, ge=1)
    """Passes without a better accuracy on the rows set aside, after which training stops (>= 1)."""
    runs: int = Field(3, ge=1)
    """Classifiers that are trained, each of its own public seed (>= 1)."""
    device: str = "cpu"
    """Torch device."""


class NextWordShape(Declaration):
    """Size of the next-word model."""

    vocabulary: int = Field(4096, ge=3000, le=30_522)
    """Word pieces of BERT, most frequent first."""
    width: int = Field(96, ge=16, le=4096)
    """Hidden width d; a multiple of 2 x `heads`."""
    layers: int = Field(1, ge=1, le=48)
    """Transformer layers."""
    heads: int = Field(2, ge=1, le=64)
    """Attention heads of a layer."""
    feed_forward: int = Field(256, ge=16, le=16384)
    """Width of the gated feed-forward layer."""
    max_document_tokens: int = Field(48, ge=4, le=8192)
    """Documents are cut to this, tokens."""

    def refusals(self) -> Iterator[Refusal]:
        """A width that the heads do not divide."""
        if self.width % (2 * self.heads):
            yield Refusal("width", f"a multiple of 2 x heads ({2 * self.heads})", "Choose one.")


class NextWordSettings(NextWordShape):
    """Size, training and seed of the next-word model; defaults take twenty seconds on one core."""

    token_budget: int = Field(80_000, ge=1)
    """Training tokens in all, repeats included."""
    batch_tokens: int = Field(512, ge=64)
    """Tokens of one optimizer step, about."""
    matrix_learning_rate: float = Field(0.02, gt=0)
    """Muon, for matrices."""
    learning_rate: float = Field(4e-3, gt=0)
    """AdamW, for embeddings and norms."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's decay."""
    warmup_share: float = Field(0.05, ge=0, lt=1)
    """Share of the budget to warm up."""
    score_texts: int = Field(1000, ge=1)
    """Most real texts that are predicted."""
    seed: int = 0
    """Public seed of initial weights and of the order of text."""
    threads: int = Field(1, ge=1)
    """CPU threads; weights depend on it in the last bits."""
    device: str = "cpu"
    """Torch device."""


class MauveSpec(Declaration):
    """Constants of MAUVE. Scores of other constants do not compare: they are next to the score."""

    embedder: TextEmbedderSpec | None = None
    """Model that embeds texts for MAUVE, and how much of a text it reads; none: the base's."""
    scaling_factor: float = Field(5.0, gt=0)
    """Constant c of exp(-c KL) (> 0): a greater one gives less MAUVE."""
    rows_per_cluster: int = Field(10, ge=1)
    """Rows a side for each cluster of k-means (>= 1)."""
    repeats: int = Field(5, ge=1)
    """Subsamples and starts of k-means that the score is the mean of (>= 1)."""


class EvaluationSpec(Declaration):
    """The scoring of corpora. Scores stay internal: they are computed from private text."""

    rows: int = Field(1000, ge=10)
    """Most rows scored of a corpus (>= 10); all corpora are scored on as many as the smallest
    has."""
    reference_rows: int = Field(400, ge=10)
    """Rows of the public-only and non-private references."""
    canaries: Annotated[str | None, IS_PATH] = None
    """Private text or Parquet file with one planted canary a line; none: no test."""
    references: bool = True
    """Whether real held-out text and public text are scored beside."""
    next_word: bool = False
    """Whether a small language model is trained on every corpus and scored by the next words of
    held-out text it gets right."""
    next_word_settings: NextWordSettings = Field(default_factory=NextWordSettings)
    """Shape and training of that model."""
    next_word_larger: NextWordSettings | None = None
    """Those of a second, larger one, whose accuracy is a score of its own, e.g. `{width: 192,
    layers: 3}`; none: one is trained."""
    mauve: MauveSpec = Field(default_factory=MauveSpec)
    """Constants of MAUVE; the defaults are those of Amin et al. 2025."""
    judged: bool = False
    """Whether the base's language model reads rows: their perplexity, and whether it finds them
    well written. It gives no verdict where it cannot tell real rows from shuffled words."""
    in_context: bool = False
    """Whether that model names labels of real records after four rows of each corpus."""
    encoder: EncoderSpec | None = None
    """Encoder that is fine-tuned on every corpus and tested on real records, and the other way
    round; `{}` takes the defaults, none: not trained. `dpsynth plan` says what it takes."""

    def refusals(self) -> Iterator[Refusal]:
        """Settings of models that are not trained."""
        told = (self.next_word_settings, self.next_word_larger) != (NextWordSettings(), None)
        if told and not self.next_word:
            expected = "true with next_word_settings or next_word_larger"
            yield Refusal("next_word", expected, "Write next_word: true, or drop them.")

    @property
    def reads_rows(self) -> bool:
        """Whether the base's language model reads rows to score them."""
        return self.judged or self.in_context
