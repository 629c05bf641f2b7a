"""Settings of a topic model's fit, all public."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

NOISE = -1
"""Group of a document that belongs to no dense group."""

KEYWORDS = 10
"""Keywords of a topic, as in the paper."""


class TopicModelSettings(BaseModel):
    """Settings of a topic model. Defaults suit thousands of documents and millions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sample_documents: int = Field(
        50_000, ge=100, le=1_000_000, description="Documents that density clustering sees."
    )
    neighbors: int = Field(10, ge=1, le=100, description="Documents averaged before clustering.")
    dimensions: int = Field(15, ge=2, le=100, description="Principal components clustered in.")
    min_cluster_size: int = Field(
        20, ge=2, le=100_000, description="Fewest documents of the sample in a dense group."
    )
    min_samples: int = Field(5, ge=1, le=1_000, description="Neighbours that define density.")
    max_topic_share: float = Field(
        0.05, gt=0, le=1, description="Largest share of the sample in a group not cut again."
    )
    min_topics: int = Field(10, ge=1, le=100_000, description="With fewer, the largest are split.")
    max_topics: int = Field(2_000, ge=1, le=100_000, description="With more, the nearest merge.")
    refinements: int = Field(
        2, ge=0, le=20, description="Passes that move topics to the mean of their members."
    )
    unclassified_percentile: float = Field(
        0.1,
        ge=0,
        le=50,
        description="Percentile of public cosines below which no topic is.",
    )
    vocabulary: int = Field(
        20_000, ge=100, le=1_000_000, description="Words that may become keywords."
    )
    min_word_documents: int = Field(
        5, ge=1, description="Documents that hold a keyword; at most a hundredth of a corpus."
    )
    keyword_documents: int = Field(
        500, ge=10, le=1_000_000, description="Nearest members of a topic whose words are counted."
    )
    keyword_words: int = Field(
        256, ge=10, le=100_000, description="Words of a document that are counted."
    )
    candidates: int = Field(
        20, ge=KEYWORDS, le=1_000, description="Telling words of a topic that keywords are of."
    )
    diversity: float = Field(
        0.3, ge=0, le=1, description="Weight of being unlike earlier keywords, in [0, 1]."
    )
    seed: int = Field(0, ge=0, description="Public seed of the sample and of k-means.")

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_topics > self.max_topics:
            raise ValueError(
                f"Expected min_topics <= max_topics, got {self.min_topics} > {self.max_topics}. "
                "Lower min_topics or raise max_topics."
            )
        return self
