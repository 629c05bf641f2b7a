"""Settings of the methods that evolve a population, as they stand in a dataset file."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from dpsynth_assets.datasets.fields import Refusal, unfit
from dpsynth_assets.methods.base import MethodConfig
from dpsynth_assets.methods.evolution.prompts import PromptFile
from dpsynth_assets.methods.rejection_sampling import KEPT_IF_SAID, RejectionSettings
from dpsynth_assets.models.engines.protocol import Sampling

FIRST_DEGREE, LAST_DEGREE = 0.8, 0.4
"""How much of a text its variations rewrite in the first round, and in the last and in writing:
share of its tokens, or probability of blanking a word of {masked_sample}. Aug-PE lets it fall from
round to round (Xie et al. 2024, appendix); rounds between lie on a line."""

TOP_P = 0.95
"""Words are drawn from the smallest set of this probability."""

ROWS_PER_FORWARD = 64
"""Rows the public model decodes together on a processor: bounds memory."""
ROWS_ON_A_GPU = 512
"""The same on a GPU, which reads its weights once for all of them."""

PUBLIC_DOCUMENTS = 20_000
"""Public documents that are clustered, at most: k-means over as many takes seconds."""

NOISE_FLOOR = 1.0
"""Least standard deviation of the noise on counts (records). Where records are rarely drawn (p, r)
alone would allow none at all: the secret may then be published with probability r - p. At 1 a drawn
record is still protected by √2-GDP."""

EVERY_RECORD = 1.0
"""Probability with which a release draws each record: with a constant below 1 the mixture of rarely
drawn secrets needs less noise, and fewer records are counted in it."""


class EvolutionConfig(MethodConfig):
    """Settings of every evolution. Defaults suit small models and demo cohorts."""

    constants: ClassVar[Mapping[str, Any]] = {
        "variation": "prefix",
        "infilling_model": None,
        "infilling_proposals": 4,
        "selection": "rank",
        "vote_threshold": 0.0,
        "chat": False,
        "word_count_std": 0.0,
        "tokens_per_word": None,
        "first_degree": FIRST_DEGREE,
        "last_degree": LAST_DEGREE,
        "top_p": TOP_P,
        "rows_per_forward": ROWS_PER_FORWARD,
        "prompt_variables": [],
    }

    iterations: int = Field(default=5, ge=1, le=100)
    """Rounds of votes (T, rounds); all of them are charged. Aug-PE takes 10; fewer rounds mean less
    noise in each.
    """
    population: int = Field(default=60, ge=1, le=1_000_000)
    """Texts that survive a round (N_syn, texts), shared out over the labels. Votes are spread over
    population x variations candidates: choose it so that a candidate can win more votes than the
    noise. Aug-PE takes 2000 to 5000 for 75,000 to 1.9 million records.
    """
    variations: int = Field(default=4, ge=2, le=100)
    """Candidates for each survivor, itself included (L, texts). Aug-PE takes 6 or 7."""
    lookahead: int = Field(default=0, ge=0, le=100)
    """Variations of every candidate whose mean embedding stands for it in the votes (K, texts). 0:
    its own embedding.
    """
    api: Literal["public_model", "engine"] = "public_model"
    """Who writes. public_model: the public language model, which keeps the beginning of a text and
    writes its end again. engine: the dataset file's engine, instructed by random_prompt and
    variation_prompt.
    """
    random_prompt: str | PromptFile | None = None
    """Prompt file for texts of the first generation (JSON with message_template and
    replacement_rules, as Microsoft's package `pe` reads), or its content. For engine.
    """
    variation_prompt: str | PromptFile | None = None
    """Prompt file for variations; may name {sample}, {masked_sample} and {word_count}. For engine.
    """
    max_new_tokens: int = Field(default=64, ge=4, le=8192)
    """Texts are at most this long (tokens). SecPE takes 64 for Yelp, 448 else."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature (no unit). Aug-PE takes 1.2."""
    rows: int = Field(default=500, ge=1, le=100_000_000)
    """Rows to write unless a launch asks for others (rows); they cost nothing: survivors, then
    variations of them.
    """
    rejection: RejectionSettings | None = KEPT_IF_SAID

    def refusals(self) -> Iterator[Refusal]:
        """Prompts where no engine writes, and none where one does."""
        prompts = ("random_prompt", "variation_prompt")
        yield from unfit(self, "api", {"public_model": (), "engine": prompts})

    def degree(self, iteration: int) -> float:
        """Share that variations rewrite before round `iteration` in [1, T)."""
        way = (iteration - 1) / (self.iterations - 2) if self.iterations > 2 else 1.0
        return FIRST_DEGREE + min(max(way, 0.0), 1.0) * (LAST_DEGREE - FIRST_DEGREE)

    def sampling(self, seed: int, limits: int | tuple[int, ...]) -> Sampling:
        """Settings of drawing texts of at most `limits` tokens; the seed is public."""
        return Sampling(temperature=self.temperature, top_p=TOP_P, max_new_tokens=limits, seed=seed)


class VotedConfig(EvolutionConfig):
    """Settings of votes for the nearest candidate of a record's label."""

    constants: ClassVar[Mapping[str, Any]] = {
        **EvolutionConfig.constants,
        "label_budget_share": 0.05,
        "label_shares": "equal",  # Of the population and the rows: true ones are private.
    }


class AugPeConfig(VotedConfig):
    """Xie et al. 2024: private records vote for the nearest candidate of their label."""

    method: Literal["aug_pe"] = "aug_pe"


class AugPeFromCorpusConfig(VotedConfig):
    """Aug-PE whose first population is another released corpus of the cohort."""

    method: Literal["aug_pe_from_corpus"] = "aug_pe_from_corpus"
    corpus: str = Field(default="epsvec", pattern=r"^[a-z0-9_]+$")
    """Folder of the DP method whose published rows the evolution starts from."""


class SecPeConfig(EvolutionConfig):
    """Wang et al. 2025: released centres of clusters vote in place of private records."""

    constants: ClassVar[Mapping[str, Any]] = {
        **EvolutionConfig.constants,
        "releases": 1,
        "sampling_probability": EVERY_RECORD,
        "noise_floor": NOISE_FLOOR,
        "public_weight": 1.0,
        "public_documents": PUBLIC_DOCUMENTS,
        "voting": "quota",
        "label_shares": "equal",
    }
    method: Literal["secpe"] = "secpe"
    clusters: int = Field(default=20, ge=1, le=100_000)
    """Public clusters of each label (K, clusters), whose noisy centres and counts are released. The
    noise on a count is the same however many there are: choose K so that a cluster gets more
    records than the noise. The paper takes 15 to 4000 in all.
    """
    secret_share: float | None = Field(default=None, gt=0, le=1)
    """Share of the secrets' bound that this method may use in all rounds, of its squared μ, in (0,
    1]; none: an equal part of what the others and DP releases leave.
    """
    record_level: bool = False
    """Whether every record is protected too: the same release is then charged as a DP release
    within this method's budget_share, with the larger of both noises. false: secrets alone are
    protected, and the corpus has no DP guarantee.
    """
