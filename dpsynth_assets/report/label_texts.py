"""The sentences of a privacy label. Each is a fact about code in this package, said once."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
    TruncatedPoissonGaussianEvent,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.privacy.ledger.statement import FILTER, PLAN, SWITCHED
from dpsynth_assets.privacy.units import NeighboringRelation

DEFINITIONS = {
    GuaranteeType.DP: (
        "(ε, δ)-differential privacy: for every two neighbouring datasets and every set of "
        "outcomes S, P[S] <= e^ε P'[S] + δ"
    ),
    GuaranteeType.EX_POST: (
        "ex-post, data-dependent only: no (ε, δ)-DP guarantee. The realised bound holds for the "
        "data at hand and the text that came out; it is itself computed from private data, is not "
        "sanitised, and is therefore withheld"
    ),
    GuaranteeType.SECRET: (
        "(p, r)-secret protection: an adversary who would guess a declared secret with "
        "probability at most p succeeds with probability at most r after seeing the release. "
        "Nothing is promised about records, about other content, or about undetected secrets"
    ),
}

RELATIONS = {
    NeighboringRelation.ADD_REMOVE: "one dataset holds one privacy unit more than the other",
    NeighboringRelation.ZERO_OUT: (
        "one privacy unit's records are replaced by null records that keep their places; the "
        "number of records is public"
    ),
    NeighboringRelation.REPLACE_ONE: (
        "one privacy unit's records have other content under the ids they had, where the dataset "
        "declares a column of ids or of units; the number of records and these ids are public"
    ),
}

COMPOSITION = {
    "zcdp": (
        "a filter: zCDP, or Rényi DP at one order fixed by the budget; valid when later releases "
        "are chosen after seeing earlier ones"
    ),
    "tight": (
        "a plan fixed before the first charge: privacy-loss distributions convolved, token draws "
        "by the optimal adaptive composition of bounded-range mechanisms"
    ),
    SWITCHED: (
        "first a plan fixed before the first charge, then the filter, which counts the plan's "
        "charges too. Each bounds the outcomes under which it was the last rule with the cohort's "
        "δ, so that both together hold with twice that"
    ),
}

BASIS = {
    FILTER: (
        "a filter: ε of the largest budget under which any release was admitted, whichever "
        "releases were chosen after seeing others, if the budget was not raised because of them"
    ),
    PLAN: (
        "a plan fixed before the first charge: ε of all its copies that the budget admits, since "
        "whether another one follows may depend on what came out"
    ),
    SWITCHED: (
        "a plan, then a filter: the larger of ε of the plan's copies and ε of the largest budget, "
        "with δ doubled"
    ),
}
"""Reasons why the guarantee of a cohort's label holds."""

DOUBLED = (
    "twice the cohort's δ: the cohort was switched from a plan to the filter, and which of the two "
    "rules was the last may depend on what was released"
)

READING = (
    "the reading of an odometer, a diagnostic: what the charges so far would cost had they been "
    "fixed beforehand. It says how much of the budget is left, and is no guarantee"
)

OF_A_CORPUS = {
    "zcdp": (
        "these releases alone: one whose event was fixed before it was drawn, or several added up "
        "as the filter adds them, since settings of one may follow from another; whichever "
        "releases were chosen, what is guaranteed is the ε of the whole cohort"
    ),
    "tight": "these releases alone, of a plan that was fixed before the first charge",
}
"""Basis of the ε of one corpus, by accountant."""

RECALL = "detector_recall"
"""Middle of the names of results that say what detectors of secrets miss."""

NOT_RUN = "not run"
"""Kind of an audit that concerns a release and of which no result with its settings is known."""

SELECTION = (
    "Nothing is charged for choosing settings. The settings came from the dataset file; if they "
    "were chosen after looking at internal scores of earlier corpora of the same records, that "
    "choice is not covered"
)


def mechanism_sentence(event: Event) -> str:
    """Says in words what an accounting event did, with its public numbers."""
    if is_post_processing(event):
        return "written from the releases it names; reads nothing private and costs nothing"
    if isinstance(event, ComposedEvent):
        return "; ".join(mechanism_sentence(part) for part in event.events)
    return _counted(event) or _sampled(event)


def _counted(event: Event) -> str:
    """Noise on counts, sums and token draws; empty for other events."""
    match event:
        case DiscreteLaplaceEvent():
            return (
                "integer counts with discrete Laplace noise of scale "
                f"{rounded_down(event.scale, '.4g')}; a unit "
                f"moves them by at most {event.sensitivity} in L1"
            )
        case DiscreteGaussianEvent():
            return (
                "integer counts with discrete Gaussian noise of standard deviation "
                f"{rounded_down(event.noise_std, '.4g')}; over all releases a unit moves "
                f"{event.count} of them by at most {event.shift} each"
            )
        case GaussianEvent():
            return (
                "Gaussian noise whose standard deviation is "
                f"{rounded_down(event.noise_multiplier, '.4g')} times the L2 distance between "
                "neighbours"
            )
        case BoundedRangeEvent():
            return (
                f"{event.count} tokens a batch drawn from a softmax whose log-likelihood ratio "
                f"ranges over at most η = {rounded_up(event.eta, '.4g')} between neighbours; "
                "batches share no record"
            )
        case PureEvent():
            return (
                f"{event.count} adaptive releases, each pure {rounded_up(event.epsilon, '.4g')}-DP"
            )
    return ""


def _sampled(event: Event) -> str:
    """Noise on samples, and mixtures for secrets; empty for other events."""
    match event:
        case PoissonGaussianEvent():
            return (
                f"{event.steps} Gaussian releases of noise multiplier "
                f"{rounded_down(event.noise_multiplier, '.4g')}"
                ", each over a Poisson sample of rate "
                f"{rounded_up(event.sampling_probability, '.4g')}"
            )
        case TruncatedPoissonGaussianEvent():
            return (
                f"{event.steps} Gaussian releases of noise multiplier "
                f"{rounded_down(event.noise_multiplier, '.4g')}"
                ", each over a Poisson sample of rate "
                f"{rounded_up(event.sampling_probability, '.4g')} cut to at "
                f"most {event.max_batch_size} of {event.records} records"
            )
        case MixtureGaussianEvent():
            return (
                f"{event.steps} release{'s' if event.steps > 1 else ''} with Gaussian noise of "
                f"standard deviation {rounded_down(event.noise_std, '.4g')}, dominated by a "
                "mixture of shifts of at "
                f"most {rounded_up(event.shifts[-1], '.4g')} for the neighbours of one secret"
            )
    return ""


def not_protected(kinds: Collection[str], unit: str, relation: NeighboringRelation) -> list[str]:
    """Plain sentences on what guarantees of these kinds leave open.

    Only neighbours that lack a unit hide that it is there; the others have its ids or its place.
    """
    hidden = "presence" if relation is NeighboringRelation.ADD_REMOVE else "content"
    trends = (
        f"Facts that hold for many units: the guarantee hides the {hidden} of {unit}, not trends."
    )
    sentences = [
        *([trends] if set(kinds) == {GuaranteeType.DP} else []),
        "The set of labels and everything listed under public facts.",
        "Text that public documents or the public language model already contained.",
        "Running time, and whoever can read the machine.",
    ]
    if GuaranteeType.EX_POST in kinds:
        sentences.append("Anything in the worst case: the ex-post bound varies with the data.")
    if GuaranteeType.SECRET in kinds:
        sentences.append("Whatever is no declared secret: content, membership, undetected secrets.")
        sentences.append(
            "A secret in one case out of about 1 / (r - p): a bound at one p allows a mechanism to "
            "publish it outright that often."
        )
    return sentences


def not_summed(kinds: Collection[str]) -> list[str]:
    """Lists what was deliberately left out of ε."""
    sentences = []
    if GuaranteeType.EX_POST in kinds:
        sentences.append(
            "Ex-post bounds: they depend on the data, are not sanitised, and are never added to ε."
        )
    if GuaranteeType.SECRET in kinds:
        sentences.append(
            "Secret protection: it composes as a dominating pair for each secret and is never "
            "added to ε."
        )
    return sentences


def losses_of_ledger(entries: Sequence[LedgerEntry]) -> list[str]:
    """States, for each loss that a person accepted, that what was lost is counted nowhere."""
    return [
        f"the ledger lost entries, and a person went on without them on {entry.recorded_at[:10]} "
        f"({entry.parameters.get('because', '')}): what they charged is counted nowhere"
        for entry in entries
        if entry.kind == "recovery" and entry.parameters.get("action") == "accept"
    ]


def is_recall(result: Mapping[str, Any]) -> bool:
    """Says whether a result among the audits is the recall of a detector of secrets."""
    return f"/{RECALL}/" in str(result.get("name", ""))


def is_not_run(result: Mapping[str, Any]) -> bool:
    """Says whether an item among the audits says that none was run."""
    return result.get("kind") == NOT_RUN
