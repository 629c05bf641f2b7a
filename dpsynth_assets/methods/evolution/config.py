"""Settings of the methods that evolve a population, as they stand in a dataset file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dpsynth_assets.methods.base import MethodConfig
from dpsynth_assets.methods.evolution.prompts import PromptFile
from dpsynth_assets.methods.evolution.selection import Selection
from dpsynth_assets.methods.rejection_sampling import KEPT_IF_SAID, RejectionSettings
from dpsynth_assets.models.engines import Sampling


class EvolutionConfig(MethodConfig):
    """Settings of every evolution. Defaults suit small models and demo cohorts."""

    iterations: int = Field(
        default=5,
        ge=1,
        le=100,
        description=(
            "Rounds of votes (T, rounds); all of them are charged. Aug-PE takes 10; fewer rounds "
            "mean less noise in each."
        ),
    )
    population: int = Field(
        default=60,
        ge=1,
        le=1_000_000,
        description=(
            "Texts that survive a round (N_syn, texts), shared out over the labels. Votes are "
            "spread over population x variations candidates: choose it so that a candidate can "
            "win more votes than the noise. Aug-PE takes 2000 to 5000 for 75,000 to 1.9 million "
            "records."
        ),
    )
    variations: int = Field(
        default=4,
        ge=1,
        le=100,
        description=(
            "Candidates for each survivor, itself included (L, texts). 1: survivors are replaced "
            "by one variation each, as in the original Private Evolution. Aug-PE takes 6 or 7."
        ),
    )
    lookahead: int = Field(
        default=0,
        ge=0,
        le=100,
        description=(
            "Variations of every candidate whose mean embedding stands for it in the votes (K, "
            "texts). 0: its own embedding."
        ),
    )
    selection: Selection = Field(
        default="rank",
        description=(
            "rank: the candidates with most votes. sample: drawn with replacement in proportion "
            "to votes; negative noisy votes weigh nothing."
        ),
    )
    vote_threshold: float = Field(
        default=0.0,
        ge=0,
        description="Votes taken off every candidate before sampling (H, votes).",
    )
    api: Literal["public_model", "engine"] = Field(
        default="public_model",
        description=(
            "Who writes. public_model: the public language model, which keeps the beginning of a "
            "text and writes its end anew. engine: the dataset file's engine, told by "
            "random_prompt and variation_prompt."
        ),
    )
    random_prompt: str | PromptFile | None = Field(
        default=None,
        description=(
            "Prompt file for texts of the first generation (JSON with message_template and "
            "replacement_rules, as Microsoft's package `pe` reads), or its content. For engine."
        ),
    )
    variation_prompt: str | PromptFile | None = Field(
        default=None,
        description=(
            "Prompt file for variations; may name {sample}, {masked_sample} and {word_count}. For "
            "engine."
        ),
    )
    prompt_variables: tuple[str, ...] = Field(
        default=(),
        description=(
            "Names under which the prompt files speak of the label columns, in the order of "
            "columns.labels, e.g. [business_category, review_stars]. Empty: {label}, the label's "
            "text."
        ),
    )
    chat: bool = Field(
        default=False,
        description=(
            "Wraps the messages in the chat template of a local model. false: contents are joined "
            "by blank lines, as endpoints and models without a template need it."
        ),
    )
    word_count_std: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="Spread of {word_count} around a text's own length (words).",
    )
    tokens_per_word: float | None = Field(
        default=None,
        gt=0,
        le=20,
        description=(
            "Bounds a variation to {word_count} times this (tokens a word). Empty: max_new_tokens."
        ),
    )
    first_degree: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description=(
            "How much of a text its variations rewrite in the first round (share of its tokens, or "
            "probability of blanking a word of {masked_sample})."
        ),
    )
    last_degree: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="The same in the last round and in writing; rounds between lie on a line.",
    )
    max_new_tokens: int = Field(
        default=64,
        ge=4,
        le=8192,
        description="Texts are at most this long (tokens). SecPE takes 64 for Yelp, 448 else.",
    )
    temperature: float = Field(
        default=1.0, gt=0, le=10, description="Sampling temperature (no unit). Aug-PE takes 1.2."
    )
    top_p: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Words are drawn from the smallest set of this probability (no unit).",
    )
    rows: int = Field(
        default=500,
        ge=1,
        le=100_000_000,
        description=(
            "Rows to write unless a launch asks for others (rows); they cost nothing: survivors, "
            "then variations of them."
        ),
    )
    rows_per_forward: int = Field(
        default=64, ge=1, le=65536, description="Rows the public model decodes together (rows)."
    )
    rejection: RejectionSettings | None = KEPT_IF_SAID

    @model_validator(mode="after")
    def _prompts_where_an_engine_writes(self) -> Self:
        prompts = (self.random_prompt, self.variation_prompt)
        if self.api == "engine" and None in prompts:
            raise ValueError(
                "Expected random_prompt and variation_prompt for api: engine, got none. Give the "
                "two prompt files, or let api: public_model write."
            )
        if self.api == "public_model" and prompts != (None, None):
            raise ValueError(
                "Expected no prompt files for api: public_model, got some. Write api: engine."
            )
        return self

    @model_validator(mode="after")
    def _variations_to_rank(self) -> Self:
        if self.selection == "rank" and self.variations == 1:
            raise ValueError(
                "Expected variations >= 2 for selection: rank, got 1: all candidates would "
                "survive. Raise it, or write selection: sample."
            )
        return self

    def degree(self, iteration: int) -> float:
        """Share that variations rewrite before round `iteration` in [1, T)."""
        way = (iteration - 1) / (self.iterations - 2) if self.iterations > 2 else 1.0
        return self.first_degree + min(max(way, 0.0), 1.0) * (self.last_degree - self.first_degree)

    def sampling(self, seed: int, limits: int | tuple[int, ...]) -> Sampling:
        """Settings of drawing texts of at most `limits` tokens; the seed is public."""
        return Sampling(
            temperature=self.temperature, top_p=self.top_p, max_new_tokens=limits, seed=seed
        )


class VotedConfig(EvolutionConfig):
    """Settings of votes for the nearest candidate of a record's label."""

    label_shares: Literal["equal", "released"] = Field(
        default="equal",
        description=(
            "How the population and the rows are shared out over the labels. equal: evenly. "
            "released: in the shares of a noisy histogram of labels, released first for "
            "label_budget_share of the budget. True shares are never used."
        ),
    )
    label_budget_share: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description=(
            "Share of this method's budget (of its ρ) for the histogram of labels, where "
            "label_shares is released."
        ),
    )


class AugPeConfig(VotedConfig):
    """Xie et al. 2024: private records vote for the nearest candidate of their label."""

    method: Literal["aug_pe"] = "aug_pe"


class AugPeFromCorpusConfig(VotedConfig):
    """Aug-PE whose first population is another released corpus of the cohort."""

    method: Literal["aug_pe_from_corpus"] = "aug_pe_from_corpus"
    corpus: str = Field(
        default="epsvec",
        pattern=r"^[a-z0-9_]+$",
        description="Folder of the DP method whose published rows the evolution starts from.",
    )
