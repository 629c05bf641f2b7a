"""Settings of the private-prediction methods: of a dataset file, of a base, and those advised."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from dpsynth_assets.datasets.fields import Refusal
from dpsynth_assets.methods.base import CohortTerms, MethodConfig
from dpsynth_assets.methods.capabilities import BATCHES, NUMBER, Candidate, DeclaredFacts
from dpsynth_assets.methods.rejection_sampling import (
    KEPT_IF_SAID,
    RejectionSettings,
    settings_of,
)

PRETRAINED_TOP_K = 100
"""Public support of a pretrained model: of tens of thousands of tokens at the floor, few are left.

See `vocabulary_tails`: at c = 6, τ = 1 SmolLM2's 49,152 tokens would take a third of the draws.
"""


class PrivatePredictionConfig(MethodConfig):
    """What every method of this family shares. Defaults suit a small vocabulary.

    The baseline of Amin et al. 2024 is an instruction-tuned model with one example a context.
    *Baseline++* of Amin et al. 2025 (section 6.1, appendix D.1) is a base model with its template
    (a document format, or `prompt` in the dataset file) and `examples_per_context: 2`. Both count a
    batch in contexts, so that k = 2 reads twice the records: 64 contexts at ε = 10, 256 at ε = 3,
    with `temperature: 1.5` and `clip_bound: 9` (Table 10).

    The paper charges k = 2 as k = 1, which no rule of its own justifies: a removed record would
    change a whole logit vector, not take one away, at four times the ρ (errata B-000.1). Two rules
    here make one record toggle one context for every k. `batching: hashed` drops contexts unless
    each slot holds exactly one record. For full batches (s x k records expected) a share of e^-k
    does: at k = 2 such a batch holds 14 % of s contexts, and since the denominator stays s its mean
    is as much flatter. `batching: slots` fills every context, for zero-out neighbours whose places
    are public.
    """

    expected_batch_size: int = Field(default=64, ge=1, le=4096)
    """Contexts a batch is expected to hold (s, contexts): the fixed denominator of the mean,
    regardless of the true size of a batch. Larger: less privacy cost a token, fewer texts.
    """
    examples_per_context: int = Field(default=1, ge=1, le=8)
    """Private records in one context (k, records); a batch of s contexts is cut from s x k records.
    With k >= 2 and batching: hashed a context counts only if each of its k slots received exactly
    one record, which a share of about e^-k does for full batches.
    """
    clip_bound: float = Field(default=6.0, gt=0, le=100)
    """Bound on each clipped logit (c, natural-log units); logits are in [-c, c]."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature (tau, no unit). Higher: less cost a token, wilder text."""
    max_document_tokens: int = Field(default=96, ge=2, le=8192)
    """A document ends at this length (tokens)."""
    max_example_tokens: int = Field(default=96, ge=1, le=8192)
    """Private examples are cut to this length in a prompt (tokens)."""
    max_batches: int = Field(default=64, ge=1, le=1_000_000)
    """Most batches that generate (batches): bounds compute, not privacy cost. Batches are shared
    out in proportion to released or declared counts.
    """
    batches_per_forward: int = Field(default=8, ge=1, le=1024)
    """Batches packed into one forward pass (batches). The logits of a pass take batches x s x
    vocabulary x 4 bytes; a small model on a CPU runs as many passes at once as there are threads.
    Part of the price: logit_slack is charged for each.
    """
    batching: Literal["hashed", "slots"] = "hashed"
    """hashed: a keyed hash of its id puts each record into a batch; nothing about a record is
    public. slots: records fill full batches in their public order; needs zero-out neighbours and
    public_facts.slots, and discloses label, cluster and place.
    """
    on_exhaustion: Literal["finish_publicly", "drop"] = "finish_publicly"
    """What becomes of a document that is unfinished when its batch has no private token left:
    finished from its label and prefix alone (free), or dropped.
    """
    min_tokens_for_new_document: int = Field(default=24, ge=1, le=8192)
    """A batch opens another document only while at least this many private tokens are left
    (tokens).
    """
    logit_slack: float = Field(default=3e-5, ge=0, le=10)
    """How far rounding may let other records move one record's logits (sup norm, natural-log
    units); charged in the privacy cost, for every batch of a forward pass. float32 on a processor:
    1.4e-5 was seen. On a GPU it has to be measured first (`dpsynth audit run COHORT`): 8.8e-5 was
    seen in float32, 0.34 in bfloat16. 0 by default where the base's language_model.decoder is
    exact; in vLLM only for batch-invariant kernels that pass a self-test.
    """

    rejection: RejectionSettings | None = KEPT_IF_SAID

    @property
    def support(self) -> int | None:
        """Public tokens among which a private one is drawn; None: all."""
        return None

    @property
    def most_tokens(self) -> int | None:
        """Tokens a batch may write in all, where some cost nothing; None: all cost."""
        return None

    def refusals(self) -> Iterator[Refusal]:
        """A least length above the greatest."""
        if self.min_tokens_for_new_document > self.max_document_tokens:
            expected = f"at most max_document_tokens ({self.max_document_tokens})"
            yield Refusal("min_tokens_for_new_document", expected, "Lower it.")
        if needed := settings_of(self.rejection).public_inputs():
            expected = "judge none, or rubric with an engine of its own, for rows that private "
            expected += "tokens draw"
            got = f"one that reads {', '.join(sorted(needed))}"
            yield Refusal("rejection", expected, "Change it.", got)


class UniformBatchesConfig(PrivatePredictionConfig):
    """Settings of the methods whose batches are uniform within a label."""

    batches_per_label: int | None = Field(default=None, ge=1, le=1_000_000)
    """Batches into which the records of one label are hashed (batches), a public constant. Empty:
    the declared number of records shared equally over the labels, or else the released cluster
    histogram's total of each label.
    """


class TopKConfig(PrivatePredictionConfig):
    """Settings of the methods that average whole logits over a public support."""

    public_top_k: int | None = Field(default=None, ge=1, le=1_000_000)
    """Draws only among this many of the likeliest tokens of the public prompt, as Amin et al.
    2024 at temperature 2.25 with 1024. Costs nothing. null: among all. With a declared base the
    default is 100.
    """

    @property
    def support(self) -> int | None:
        """The likeliest ones."""
        return self.public_top_k


class MeanUniformConfig(TopKConfig, UniformBatchesConfig):
    """Amin et al. 2024 without public tokens: uniform batches within a label."""

    method: Literal["mean_uniform"] = "mean_uniform"


class MeanSvtConfig(TopKConfig, UniformBatchesConfig):
    """Amin et al. 2024 whole: a token is private only where public text would not do."""

    method: Literal["mean_svt"] = "mean_svt"
    svt_noise_scale: float = Field(default=0.2, gt=0, le=100)
    """Noise of the public-token test (sigma, in units of the distance between next-token laws):
    Laplace(sigma) on the threshold, Laplace(2 sigma) on each distance.
    """
    svt_threshold: float = Field(default=0.5, ge=-2, le=4)
    """Distance from which a token is drawn privately (theta, L1 distance of next-token laws, mostly
    in [0, 2]). Higher: more free public tokens, less private text.
    """
    public_temperature: float = Field(default=1.5, gt=0, le=10)
    """Temperature of public tokens (no unit)."""
    max_tokens_per_batch: int = Field(default=2000, ge=2, le=10_000_000)
    """Tokens a batch may write in all, free ones included (tokens): a public bound on compute,
    since public tokens cost nothing and could go on permanently.
    """
    min_tokens_for_new_document: int = Field(default=4, ge=1, le=8192)
    """A batch opens another document only while at least this many private tokens are left
    (tokens); fewer than elsewhere, since public tokens are free.
    """

    @property
    def most_tokens(self) -> int:
        """The declared number."""
        return self.max_tokens_per_batch


class InvisibleInkConfig(UniformBatchesConfig):
    """InvisibleInk: clipped differences from public logits, over a public support."""

    method: Literal["invisible_ink"] = "invisible_ink"
    clip_bound: float = Field(default=1.0, gt=0, le=100)
    """Bound on each coordinate of a record's difference from the public prompt (C, natural-log
    units). About a tenth of what clipping whole logits needs.
    """
    expected_batch_size: int = Field(default=8, ge=1, le=4096)
    """Contexts a batch is expected to hold (s, contexts): the fixed denominator. Small batches
    suffice, since only differences are clipped.
    """
    top_k: int | None = Field(default=100, ge=1, le=1_000_000)
    """Tokens are drawn among those whose public logit reaches the k-th largest less 2C/s (tokens).
    Empty: among all.
    """

    @property
    def support(self) -> int | None:
        """The likeliest ones."""
        return self.top_k


class MeanClusteredConfig(TopKConfig):
    """Amin et al. 2025 with mean aggregation: batches within label and public cluster."""

    method: Literal["mean_clustered"] = "mean_clustered"


class MedianClusteredConfig(PrivatePredictionConfig):
    """Amin et al. 2025 with median aggregation: an ex-post guarantee only."""

    method: Literal["median_clustered"] = "median_clustered"
    matched_epsilon: float | None = Field(default=None, gt=0, le=1000)
    """The median draws as many private tokens a batch as the mean could at this epsilon (no unit).
    Empty: as many as the largest budget share of this dataset buys the mean.
    """


SIZES = (64, 128, 256)
"""Of the papers, in records."""


def batch_candidates(
    method: str,
    *,
    sizes: Sequence[int] = SIZES,
    settings: Mapping[str, Any] | None = None,
    **facts_of_all: Any,
) -> Callable[[DeclaredFacts], tuple[Candidate, ...]]:
    """A method's candidates, the smallest batch first: it reads the fewest contexts for a token.

    Args:
        method: Its name, which is its line on the leaderboard too.
        sizes: Records of a batch.
        settings: Further settings.
        facts_of_all: Further keywords of each `Candidate`.

    Returns:
        What `Advice.candidates` asks for.
    """

    def candidates(facts: DeclaredFacts) -> tuple[Candidate, ...]:
        lengths = (
            {}
            if facts.words is None
            else {"max_document_tokens": facts.text_tokens, "max_example_tokens": facts.text_tokens}
        )
        own = {**lengths, **(settings or {})}
        return tuple(
            Candidate(
                line=method,
                settings={"expected_batch_size": size, "max_batches": BATCHES, **own},
                batch=size,
                **{"asks": NUMBER, **facts_of_all},
            )
            for size in sizes
        )

    return candidates


def suited(pretrained: Mapping[str, Any]) -> Callable[[CohortTerms], Mapping[str, Any]]:
    """Defaults of a method by the language model of the cohort's base.

    Args:
        pretrained: Settings over a pretrained model, for whose vocabulary those of the fields,
            which suit a small one, are not made.

    Returns:
        What `Advice.defaults` asks for: nothing where no dataset file declares the base.
    """

    def defaults(terms: CohortTerms) -> Mapping[str, Any]:
        known = {} if terms.language_model is None else pretrained
        # Nothing is charged for rounding where logits are computed in exact integers.
        return {**known, **({"logit_slack": 0.0} if terms.decodes_exactly else {})}

    return defaults
