"""Optional abilities of a method, which it declares as values.

A reader asks `capability(method, ServesRows)`, of a class or of a bound method, and gets what was
declared, or None. So a method of another package has every capability that it declares, and no
reader knows a class. Functions among the values take the bound method first.

Settings that advice weighs are declared too. They are those of the leaderboard and of the papers: a
length follows from how long texts are, a number of texts from how many labels share it, and the
size of a batch is tried at the papers' sizes. The plan decides which a cohort can pay.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from dpsynth_assets.attacks.catalogue import Attack
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.stages import MethodPlan

if TYPE_CHECKING:
    from dpsynth_assets.attacks.logit_moves import PassShape
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import KeysWritten
    from dpsynth_assets.methods.base import CohortTerms, Staged

    Declaring: TypeAlias = Staged[Any] | type[Staged[Any]]


class Capability:
    """One of the values below."""


CapabilityT = TypeVar("CapabilityT", bound=Capability)


def capability(method: "Declaring", kind: type[CapabilityT]) -> CapabilityT | None:
    """What a method declares of one kind; None where it does not."""
    return next((each for each in method.capabilities if isinstance(each, kind)), None)


@dataclass(frozen=True, kw_only=True)
class BuildsOn(Capability):
    """It reads what the cohort's other methods released.

    Attributes:
        corpora: Their folders, as settings name them.
        weights: Whether it reads the fine-tuned weights behind those corpora, not their rows.
        chooses_rows: Whether its rows are some of theirs.
    """

    corpora: Callable[[Any], tuple[str, ...]]
    weights: bool = False
    chooses_rows: bool = False


def corpora_named(method: "Staged[Any]") -> tuple[str, ...]:
    """Folders of the cohort whose corpora a method's settings name, there or not."""
    built = capability(method, BuildsOn)
    return () if built is None else built.corpora(method)


def reads_weights(method: "Staged[Any]") -> bool:
    """Whether a method reads the weights behind the corpora that it names."""
    built = capability(method, BuildsOn)
    return built is not None and built.weights


@dataclass(frozen=True)
class ServesRows(Capability):
    """Rows of a chosen label come from its release on demand.

    Attributes:
        open: Opens the release for writing as a `RowSource`, given public inputs. Post-processing
            of what was released: any number of rows is free.
    """

    open: Callable[[Any, PublicInputs], AbstractContextManager[Any]]


@dataclass(frozen=True)
class ReleasesGenerator(Capability):
    """Its stage `finetuned_generator` releases weights that may be exported.

    Attributes:
        prompts: Text that a row of each label is written after, given the folder of the weights.
    """

    prompts: Callable[[Any, Path], Mapping[str, str]]


@dataclass(frozen=True)
class Evolves(Capability):
    """It releases the rounds of a population (`evolution.population`).

    Attributes:
        stage: Name of the stage that does.
    """

    stage: str


@dataclass(frozen=True)
class DrawsTokens(Capability):
    """It draws from the logits of private prompts, and its settings have `logit_slack`.

    Attributes:
        pass_shape: Says what a forward pass holds at most, given the language model; public.
    """

    pass_shape: "Callable[[Any, Any], PassShape]"


@dataclass(frozen=True)
class ProtectsSecrets(Capability):
    """It spends the bound that the dataset file promises to secrets.

    Attributes:
        share: Share of that bound, in (0, 1]; None for an equal part of what is left.
    """

    share: Callable[[Any], float | None]


Reconstruct = Callable[[Any, MethodPlan, float, Any], "KeysWritten | None"]
AuditMedian = Callable[[Any, float, PrivateInputs, PublicInputs, ProgressCallback], "MedianAudit"]


@dataclass(frozen=True, kw_only=True)
class Attacks(Capability):
    """Attacks that it can be put to.

    Attributes:
        reconstruct: Plants keys in made-up records and runs its own mechanism on them, given a plan
            that can run, the ε it was sized by, and a language model. What was written, or None if
            the budget does not reach for a single key.
        audit_median: Draws from batches of public documents as it does, and audits every token,
            given the target ε, the documents, public inputs and progress; None: it draws from no
            median.
    """

    reconstruct: Reconstruct
    audit_median: AuditMedian | None = None


def attacks_on(method: "Declaring") -> tuple[Attack, ...]:
    """Attacks that a method can be put to."""
    declared = capability(method, Attacks)
    if declared is None:
        return ()
    audited = () if declared.audit_median is None else (Attack.MEDIAN_AUDIT,)
    return (Attack.RECONSTRUCTION, *audited)


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


class RowSource(Protocol):
    """An open artifact that rows are written from. Everything it reads is public or released.

    Attributes:
        labels: Declared labels, in order; ("",) where there are none.
        engine: What runs the model.
        longest: Tokens of a row at most.
    """

    labels: tuple[str, ...]
    engine: str
    longest: int

    def write(self, labels: Sequence[int], sampling: RowSampling, seed: int) -> list[str]:
        """Writes one row for each place of `labels`; a row without a word is "".

        Args:
            labels: Places of labels.
            sampling: How tokens are drawn.
            seed: Of public randomness; another one gives other rows.
        """

    def tokens(self, text: str) -> int:
        """Counts the tokens of a text."""


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
        for_rows: Settings at which it writes this many rows, where they differ.
    """

    defaults: "Callable[[CohortTerms], Mapping[str, Any]]" = lambda _: {}
    candidates: Callable[[DeclaredFacts], tuple[Candidate, ...]] = lambda _: ()
    unadvised: str = "its package proposes no settings for advice"
    for_rows: Callable[[int], Mapping[str, Any]] = lambda _: {}


def behind(method: str) -> Mapping[str, Any]:
    """What a candidate asks for that builds on a generator, as keywords of `Candidate`."""
    return {
        "declared": TOPICS,
        "base": FINE_TUNED,
        "asks": f"{NUMBER}; topic_histogram; {method} before it, with half of the budget",
        "after": method,
    }
