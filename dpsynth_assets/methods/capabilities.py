"""Rows on demand, and the settings of methods that advice weighs.

The settings are those of the leaderboard and of the papers: a length follows from how long texts
are, a number of texts from how many labels share it, and the size of a batch is tried at the
papers' sizes. The plan decides which a cohort can pay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dpsynth_assets.methods.base import CohortTerms


@dataclass(frozen=True, kw_only=True)
class RowSampling:
    """How tokens of a row are drawn; None: as the method's settings say.

    Attributes:
        temperature: Divides the logits, >= 0.
        top_p: Draws from the smallest set of tokens with at least this mass; in (0, 1].
        max_new_tokens: Longest row, at most what the settings say.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None

    @property
    def asked(self) -> dict[str, float]:
        """What is asked for otherwise than the method's settings say, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """An open artifact that rows are written from. Everything it reads is public or released.

    Attributes:
        labels: Declared labels, in order; ("",) where there are none.
        engine: What runs the model.
        longest: Tokens of a row at most.
        write: Writes one row for each place of a label, tokens drawn as said, by a public seed; a
            row without a word is "".
        tokens: Counts the tokens of a text.
    """

    labels: tuple[str, ...]
    engine: str
    longest: int
    write: Callable[[Sequence[int], RowSampling, int], list[str]]
    tokens: Callable[[str], int]


CLUSTERS = 4
"""Clusters of a label, where batches are cut by them."""

BATCHES = 256
"""Batches of private prediction at most: bounds what a run computes."""

TEXT_TOKENS = 160
"""Tokens of a text at most, where the length of texts is not declared: some 110 words."""

_TOKENS_PER_WORD = 2.0
"""Of English, 1.4 on average; the rest is room for texts that are longer than others."""

HISTOGRAM: Mapping[str, Any] = {
    "cluster_histogram": {"budget_share": 0.02, "clusters_per_label": CLUSTERS}
}
TOPICS: Mapping[str, Any] = {"topic_histogram": {}}
FINE_TUNED: Mapping[str, Any] = {"conditional_generator": {"kind": "language_model"}}

NUMBER = "the number of records (public_facts.records)"


@dataclass(frozen=True, kw_only=True)
class DeclaredFacts:
    """What is public about a dataset and decides settings.

    Attributes:
        rows: Rows that are wanted.
        labels: Labels that share them (>= 1).
        words: Words of a typical text; None where it is not declared.
    """

    rows: int
    labels: int = 1
    words: int | None = None

    @property
    def text_tokens(self) -> int:
        """Tokens of a text at most."""
        if self.words is None:
            return TEXT_TOKENS
        return max(24, min(512, round(_TOKENS_PER_WORD * self.words)))

    def each(self, texts: int, most: int) -> int:
        """Texts of one label where all share this many, `most` of each."""
        return max(20, min(most, texts // self.labels))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method with settings.

    Attributes:
        line: Name of its line on the leaderboard.
        settings: Its settings.
        declared: Further fields of the dataset file that it needs.
        base: Fields of the public base that it needs: defaults where its model is smollm2.
        asks: What a steward has to declare for it, in words.
        batch: Records that every label, or every cluster of a label, must have for one batch.
        after: Method of the same file that it builds on, with half of the budget; empty: none.
        concerns: Section of the dataset file without which it is not considered: `structured` or
            `secrets`; none: it is for any text.
    """

    line: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    asks: str = "nothing further"
    batch: int = 0
    after: str = ""
    concerns: Literal["structured", "secrets"] | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a method says of its own settings.

    Attributes:
        defaults: Settings that suit a cohort's declared terms, where the dataset file names none:
            a setting of the file comes before them, those of the config's fields after.
        candidates: Settings that advice weighs, the best first that a plan may refuse.
        unadvised: Why advice never offers it, where it has no candidates.
    """

    defaults: "Callable[[CohortTerms], Mapping[str, Any]]" = lambda _: {}
    candidates: Callable[[DeclaredFacts], tuple[Candidate, ...]] = lambda _: ()
    unadvised: str = "its package proposes no settings for advice"


def behind(method: str) -> Mapping[str, Any]:
    """What a candidate asks for that builds on a generator, as keywords of `Candidate`."""
    return {
        "declared": TOPICS,
        "base": FINE_TUNED,
        "asks": f"{NUMBER}; topic_histogram; {method} before it, with half of the budget",
        "after": method,
    }
