"""Settings of a topic model's fit, all public."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

KEYWORDS = 10
"""Keywords of a topic, as in the paper."""


class TopicModelSettings(BaseModel):
    """Settings of a topic model. Defaults suit thousands of documents and millions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sample_documents: int = Field(
        50_000,
        ge=100,
        le=1_000_000,
        description="Documents that the density clustering sees (documents); all others are "
        "assigned to the topics found in this sample. For thousands of topics, some 50 times as "
        "many.",
    )
    neighbors: int = Field(
        10,
        ge=1,
        le=100,
        description="Nearest documents, itself included, over which a document's embedding is "
        "averaged before clustering (documents). 1: no averaging, and most documents are noise.",
    )
    dimensions: int = Field(
        15,
        ge=2,
        le=100,
        description="Principal components that the density clustering sees (dimensions).",
    )
    min_cluster_size: int = Field(
        20, ge=2, le=100_000, description="Fewest documents of the sample in a dense group."
    )
    min_samples: int = Field(
        5, ge=1, le=1_000, description="Neighbours that define the density around a document."
    )
    max_topic_share: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of the sample in one dense group: a larger one, and a larger "
        "rest that belongs to none, is clustered again by itself.",
    )
    min_topics: int = Field(
        10,
        ge=1,
        le=100_000,
        description="Fewer dense groups than this are split, the largest first, by k-means.",
    )
    max_topics: int = Field(
        2_000,
        ge=1,
        le=100_000,
        description="More dense groups than this are merged, the nearest first.",
    )
    refinements: int = Field(
        2,
        ge=0,
        le=20,
        description="Passes over all documents in which a topic's embedding becomes the mean of "
        "its members.",
    )
    unclassified_percentile: float = Field(
        0.1,
        ge=0,
        le=50,
        description="A text is unclassified if its cosine to the nearest topic is below this "
        "percentile of public documents' (percent). Low, since even a distant topic says more to a "
        "generator than none.",
    )
    vocabulary: int = Field(
        20_000, ge=100, le=1_000_000, description="Words that may become keywords (words)."
    )
    min_word_documents: int = Field(
        5,
        ge=1,
        description="A keyword occurs in at least so many documents; fewer than a hundredth of "
        "them is asked of a small corpus.",
    )
    keyword_documents: int = Field(
        500,
        ge=10,
        le=1_000_000,
        description="Members of a topic whose words are counted, the nearest ones (documents).",
    )
    keyword_words: int = Field(
        256, ge=10, le=100_000, description="Words of a document that are counted (words)."
    )
    candidates: int = Field(
        20,
        ge=KEYWORDS,
        le=1_000,
        description="Most telling words of a topic among which keywords are chosen (words).",
    )
    diversity: float = Field(
        0.3,
        ge=0,
        le=1,
        description="Weight of being unlike the keywords chosen before, against being near the "
        "topic (no unit).",
    )
    seed: int = Field(0, ge=0, description="Seed of the sample and of k-means, public.")

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_topics > self.max_topics:
            raise ValueError(
                f"Expected min_topics <= max_topics, got {self.min_topics} > {self.max_topics}. "
                "Lower min_topics or raise max_topics."
            )
        return self
