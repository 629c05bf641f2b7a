"""What the proofs behind a label take for granted, one row of a table for each assumption."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    TruncatedPoissonGaussianEvent,
    is_post_processing,
)
from dpsynth_assets.privacy.ledger import LedgerEntry

GRADIENT_SUMS = {
    False: (
        "Training gradients are clipped and added up in float32 (Products.NATIVE): that one record "
        "moves a sum by at most the clipping bound is not proved but assumed of rounding errors "
        "that behave as if they were random, and 1/128 of the bound is kept back for them. "
        "`exact_sums: true` adds up in float64."
    ),
    True: (
        "Training gradients are clipped and added up in float64 (Products.FLOAT64): that one "
        "record moves a sum by at most the clipping bound is proved, rounding of the sum included."
    ),
}
"""What the sensitivity of DP-Adam rests on, by whether sums are exact."""


@dataclass(frozen=True)
class Assumption:
    """What a proof takes for granted about arithmetic, wherever some mechanism rests on it.

    Attributes:
        sentence: The assumption, with how it is enforced or tested.
        concerns: Whether a charged event rests on it.
    """

    sentence: str
    concerns: Callable[[Event], bool]


UNPREDICTABLE = "Operating-system random numbers are unpredictable."
"""Assumed by every mechanism."""

ASSUMPTIONS = (
    Assumption(
        "Noise on counts is drawn in whole numbers, exactly: nothing is assumed of rounding.",
        lambda event: isinstance(event, DiscreteLaplaceEvent | DiscreteGaussianEvent),
    ),
    Assumption(
        "A record's logits move by at most `logit_slack` when other rows of its forward pass "
        "change; a test measures it for float32 on a CPU. The slack is charged for as many rows "
        "as a pass may hold, whatever the batches hold (before 0.2.0 a batch was assumed to hold "
        "at most four times the records expected in it).",
        lambda event: isinstance(event, BoundedRangeEvent),
    ),
    Assumption(
        "Tokens have exactly the probabilities that are charged, however rare (before 0.2.0 up to "
        "2^-53 of a probability for each token of the vocabulary was off and not charged).",
        lambda event: isinstance(event, BoundedRangeEvent),
    ),
    Assumption(  # One step is a sampled mean, on an exact lattice.
        "The sampling that is charged is the sampling that runs: an independent draw for each "
        "record and step, and, where a model is trained, noise in floating point.",
        lambda event: (
            isinstance(event, PoissonGaussianEvent | TruncatedPoissonGaussianEvent)
            and event.steps > 1
        ),
    ),
    Assumption(
        "No secret is in more records than was declared; one that is keeps a weaker bound. "
        "Where the incidence of secrets is public, every occurrence was detected: a record in "
        "which a secret was missed is sampled as if it held none.",
        lambda event: isinstance(event, MixtureGaussianEvent),
    ),
)
"""One row an assumption. What follows from a charge's parameters instead of its event (gradients,
states, embeddings) has a function of its own beside this table."""


def assumptions(atoms: Sequence[Event], exact_sums: Collection[bool] = ()) -> list[str]:
    """What the proofs take for granted about arithmetic and about the machine.

    Args:
        atoms: What was charged.
        exact_sums: Of each training among it, whether gradients were added up exactly.
    """
    of_events = [row.sentence for row in ASSUMPTIONS if any(map(row.concerns, atoms))]
    return [UNPREDICTABLE, *of_events, *(GRADIENT_SUMS[exact] for exact in sorted(set(exact_sums)))]


def exact_sums_of_training(charges: Sequence[LedgerEntry]) -> list[bool]:
    """Reads off the charges of each training whether gradients were added up exactly."""
    return [
        bool(entry.parameters.get("exact_sums", False))
        for entry in charges
        if entry.event is not None
        and not is_post_processing(entry.event)
        and "learning_rate" in entry.parameters
    ]
