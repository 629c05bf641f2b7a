"""What a method can do beside its contract: it declares these values, and a reader looks one up.

A reader asks `capability(method, ServesRows)`, of a class or of a bound method, and gets what was
declared, or None. So a method of another package has every capability that it declares, and no
reader knows a class. Functions among the values take the bound method first.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from dpsynth_assets.attacks.catalogue import Attack
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.stages import MethodPlan

if TYPE_CHECKING:
    from dpsynth_assets.attacks.logit_moves import PassShape
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import KeysWritten
    from dpsynth_assets.methods.base import Staged

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
