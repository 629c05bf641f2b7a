"""The sentences of a privacy label. Each is a fact about code in this package, said once."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    ComposedEvent,
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
from dpsynth_assets.privacy.rounded import rounded_down, rounded_up
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
}

RECALL = "detector_recall"
"""Middle of the names of results that say what detectors of secrets miss."""

NOT_RUN = "not run"
"""Kind of an audit that concerns a release and of which no result with its settings is known."""

GRADIENT_SUMS = {
    False: (
        "Training gradients are clipped and added up in float32 (Products.NATIVE): that one record "
        "moves a sum by at most the clipping bound is not proved but assumed of rounding errors "
        "that behave as if they were random, and 1/128 of the bound is kept back for them. What a "
        "record's batch mates change in the last bits of its gradient is not covered. "
        "`exact_sums: true` adds up in float64."
    ),
    True: (
        "Training gradients are clipped and added up in float64 (Products.FLOAT64): that one "
        "record moves a sum by at most the clipping bound is proved, rounding of the sum included. "
        "What a record's batch mates change in the last bits of its gradient is not covered."
    ),
}
"""What the sensitivity of DP-Adam rests on, by whether sums are exact."""

SELECTION = (
    "Nothing is charged for choosing settings. The settings came from the dataset file; if they "
    "were chosen after looking at internal scores of earlier corpora of the same records, that "
    "choice is not covered"
)


def mechanism_sentence(event: Event) -> str:
    """Says in words what an accounting event did, with its public numbers."""
    match event:
        case DiscreteLaplaceEvent():
            return (
                "integer counts with discrete Laplace noise of scale "
                f"{rounded_down(event.scale, '.4g')}; a unit "
                f"moves them by at most {event.sensitivity} in L1"
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
                "batches share no unit"
            )
        case PureEvent():
            return (
                f"{event.count} adaptive releases, each pure {rounded_up(event.epsilon, '.4g')}-DP"
            )
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
        case ComposedEvent():
            if is_post_processing(event):
                return "written from the releases it names; reads nothing private and costs nothing"
            return "; ".join(mechanism_sentence(part) for part in event.events)


def assumptions(atoms: Sequence[Event], exact_sums: Collection[bool] = ()) -> list[str]:
    """What the proofs take for granted about arithmetic and about the machine.

    Args:
        atoms: What was charged.
        exact_sums: Of each training among it, whether gradients were added up exactly.
    """
    sentences = ["Operating-system random numbers are unpredictable."]
    if any(isinstance(atom, BoundedRangeEvent) for atom in atoms):
        sentences.append(
            "A record's logits move by at most `logit_slack` when other rows of its forward pass "
            "change, and a batch holds at most four times the records expected in it; the slack "
            "is charged for all batches of a pass, and a test measures it for float32 on a CPU."
        )
    sampled = [
        a for a in atoms if isinstance(a, PoissonGaussianEvent | TruncatedPoissonGaussianEvent)
    ]
    if any(a.steps > 1 for a in sampled):  # One step is a sampled mean, on an exact lattice.
        sentences.append(
            "The sampling that is charged is the sampling that runs: an independent draw for each "
            "record and step, and noise in floating point."
        )
    sentences += [GRADIENT_SUMS[exact] for exact in sorted(set(exact_sums))]
    if any(isinstance(atom, MixtureGaussianEvent) for atom in atoms):
        sentences.append(
            "No secret is in more records than was declared; one that is keeps a weaker bound. "
            "Where the incidence of secrets is public, every occurrence was detected: a record in "
            "which a secret was missed is sampled as if it held none."
        )
    return sentences


def exact_sums_of_training(charges: Sequence[LedgerEntry]) -> list[bool]:
    """Reads off the charges of each training whether gradients were added up exactly."""
    return [
        bool(entry.parameters.get("exact_sums", False))
        for entry in charges
        if entry.event is not None
        and not is_post_processing(entry.event)
        and "learning_rate" in entry.parameters
    ]


def not_protected(kinds: Collection[str], unit: str) -> list[str]:
    """Plain sentences on what guarantees of these kinds leave open."""
    sentences = [
        f"Facts that hold for many units: the guarantee hides the presence of {unit}, not trends.",
        "The set of labels and everything listed under public facts.",
        "Text that public documents or the public language model already contained.",
        "The outcome of the release gate (canaries, verbatim spans): up to one bit a check.",
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
    """What was deliberately left out of ε."""
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
    sentences.append("Outcomes of release gates and internal evaluation scores.")
    return sentences


def is_recall(result: Mapping[str, Any]) -> bool:
    """Whether a result among the audits is the recall of a detector of secrets."""
    return f"/{RECALL}/" in str(result.get("name", ""))


def is_not_run(result: Mapping[str, Any]) -> bool:
    """Whether an item among the audits says that none was run."""
    return result.get("kind") == NOT_RUN
