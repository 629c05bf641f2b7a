"""Settings of SecPE, as they stand in a dataset file."""

from typing import Literal

from pydantic import Field

from dpsynth_assets.methods.evolution.config import EvolutionConfig


class SecPeConfig(EvolutionConfig):
    """Wang et al. 2025: released centres of clusters vote in place of private records."""

    method: Literal["secpe"] = "secpe"
    clusters: int = Field(
        default=20,
        ge=1,
        le=100_000,
        description=(
            "Public clusters of each label (K, clusters), whose noisy centres and counts are "
            "released. The noise on a count is the same however many there are: choose K so that "
            "a cluster gets more records than the noise. The paper takes 15 to 4000 in all."
        ),
    )
    releases: int = Field(
        default=1,
        ge=1,
        le=100,
        description=(
            "How often centres and counts are released, each time over a fresh sample (R, "
            "releases); all are charged. The clusters do not depend on the candidates, so one "
            "release serves every iteration; as many as iterations is the paper's Algorithm 3."
        ),
    )
    sampling_probability: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description=(
            "Probability with which a release draws each record (q, no unit), the same for all "
            "and a public constant. Not used where public_incidence is declared."
        ),
    )
    noise_floor: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description=(
            "Least standard deviation of the noise on counts (records). Where records are rarely "
            "drawn (p, r) alone would allow none at all: the secret may then be published with "
            "probability r - p. At 1 a drawn record is still protected by √2-GDP."
        ),
    )
    secret_share: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=(
            "Share of the secrets' bound that this method may use in all rounds, of its squared "
            "μ, in (0, 1]; none: an equal part of what the others and DP releases leave."
        ),
    )
    record_level: bool = Field(
        default=False,
        description=(
            "Whether every record is protected too: the same release is then charged as a DP "
            "release within this method's budget_share, with the larger of both noises. false: "
            "secrets alone are protected, and the corpus has no DP guarantee."
        ),
    )
    public_weight: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description=(
            "Weight of a public document beside a private record in centres and counts, in "
            "(0, 1]. A cluster weighs one record at least."
        ),
    )
    public_documents: int = Field(
        default=20_000,
        ge=1,
        le=10_000_000,
        description="Public documents that are clustered, at most (documents).",
    )
    voting: Literal["nearest", "quota"] = Field(
        default="quota",
        description=(
            "nearest: a representative gives all its votes to the nearest candidate, as printed; "
            "no more candidates than clusters get any. quota: to as many of the nearest as its "
            "share of the records is worth of the population, in equal parts."
        ),
    )
    label_shares: Literal["equal", "released"] = Field(
        default="equal",
        description=(
            "How the population and the rows are shared out over the labels. equal: evenly. "
            "released: in the shares of the released counts, which costs nothing more."
        ),
    )
