"""Assumptions of the proofs behind a label, one row of a table each.

Some depend on how a release was made: how private texts were embedded, which records shared a pass
when gradients were clipped or states were read, and what a self-test of logits found.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.models.text_embedder import Arithmetic
from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    TruncatedPoissonGaussianEvent,
    flatten,
    is_post_processing,
)
from dpsynth_assets.privacy.guarantees import EMBEDDINGS, GRADIENTS, RESTS_ON, SELF_TEST, STATES
from dpsynth_assets.privacy.ledger import LedgerEntry

SAME_PASS = "passes of one record are assumed to give the same bits each time"

GRADIENTS_ALONE = (
    "Every record passes through the model alone in training, so that its clipped gradient is a "
    f"function of it and of the model: {SAME_PASS}."
)

GRADIENTS_IN_SHARED_PASSES = (
    "Where records share a pass in training, a record's clipped gradient moves by at most "
    "{gradient_slack} of the clipping bound when its batch mates change; this is measured, not "
    "proved. It is kept back of the bound for {most_in_company} records; records of larger batches "
    f"pass alone ({SAME_PASS})."
)

STATES_ALONE = (
    "Every record's hidden states are read in a pass that holds it alone, in the numbers that the "
    f"model has: {SAME_PASS}."
)

LOGITS_TESTED = (
    "Nothing is charged for rounding (`logit_slack` 0): in a self-test before the charge, "
    "{contexts} public contexts in {companies} companies moved no bit of one another's logits "
    "({engine}, {device}, {dtype}). That private ones move none either is assumed of its "
    "batch-invariant kernels."
)


def pass_assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """Lists assumptions about records that share passes, one sentence each, once."""
    sentences = []
    for entry in charges:
        if entry.event is None or is_post_processing(entry.event):
            continue
        facts = entry.parameters.get(RESTS_ON, {})
        if GRADIENTS in facts:
            sentences.append(_of_gradients(facts[GRADIENTS]))
        if STATES in facts:
            sentences.append(STATES_ALONE)
        if SELF_TEST in facts:
            sentences.append(LOGITS_TESTED.format(**facts[SELF_TEST]))
    return list(dict.fromkeys(sentences))


def _of_gradients(facts: dict[str, object]) -> str:
    if facts["passes"] == "alone":
        return GRADIENTS_ALONE
    # An assumption of a smaller move is the stronger one: what is kept back covers it.
    slack = rounded_down(float(str(facts["gradient_slack"])), ".3g")
    return GRADIENTS_IN_SHARED_PASSES.format(
        gradient_slack=slack, most_in_company=facts["most_in_company"]
    )


EMBEDDED = {
    Arithmetic.INT8: (
        "Records were embedded by {model} in exact integer sums. That its other steps give a text "
        "the same bits at every place of a pass is tested, on several processors' kernels, and "
        "not proved."
    ),
    Arithmetic.ONE_A_PASS: (
        "Records were embedded by {model} on {device}, one text a pass: passes of one text are "
        "assumed to give the same bits each time, which rests on the model's libraries and device."
    ),
}
"""By the arithmetic of the embedder, why one record does not move another's embedding."""

NEAREST = (
    "The public rows nearest to a record (clusters, topics, candidates) are found exactly, "
    "provided that float32 products are rounded to float32, and not to TF32 or bfloat16."
)


def embedding_assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """Lists assumptions of releases that rest on embeddings, one sentence each, once."""
    sentences: list[str] = []
    for entry in charges:
        if entry.event is not None and is_post_processing(entry.event):
            continue
        made_by = entry.parameters.get(RESTS_ON, {}).get(EMBEDDINGS)
        if made_by is not None:
            sentences += [_embedded(made_by), NEAREST]
    return list(dict.fromkeys(sentences))


def _embedded(made_by: Mapping[str, Any]) -> str:
    return EMBEDDED[Arithmetic(made_by["arithmetic"])].format(**made_by)


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
"""Basis of the sensitivity of DP-Adam, by whether sums are exact."""


@dataclass(frozen=True)
class Assumption:
    """Assumption of a proof about arithmetic, wherever some mechanism rests on it.

    Attributes:
        sentence: The assumption, with how it is enforced or tested.
        concerns: Whether a charged event rests on it.
    """

    sentence: str
    concerns: Callable[[Event], bool]


UNPREDICTABLE = "Operating-system random numbers are unpredictable."
"""Assumed by every mechanism."""

LOGITS = {
    False: (
        "A record's logits move by at most `logit_slack` when other rows of its forward pass "
        "change; a test measures it for float32 on a CPU. The slack is charged for as many rows "
        "as a pass may hold, whatever the batches hold."
    ),
    True: (
        "A record's logits are computed in integers whose sums are exact (`decoder: exact`): they "
        "follow its own prompt alone, bit for bit, provided that float32 products of integers "
        "below 2^24 are exact and an operation on one number gives the same bits each time. A "
        "test compares bits on several sets of kernels."
    ),
}
"""Basis of a draw's range, by whether logits are exact."""

ASSUMPTIONS = (
    Assumption(
        "Noise on counts is drawn in whole numbers, exactly: nothing is assumed of rounding.",
        lambda event: isinstance(event, DiscreteLaplaceEvent | DiscreteGaussianEvent),
    ),
    Assumption(LOGITS[False], lambda event: isinstance(event, BoundedRangeEvent)),
    Assumption(
        "Tokens have exactly the probabilities that are charged, however rare.",
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


def assumptions(
    atoms: Sequence[Event],
    exact_sums: Collection[bool] = (),
    exact_logits: Collection[bool] = (False,),
) -> list[str]:
    """Lists what the proofs assume of arithmetic and of the machine.

    Args:
        atoms: What was charged.
        exact_sums: Of each training among it, whether gradients were added up exactly.
        exact_logits: Of each corpus of private draws among it, whether logits were exact.
    """
    rows = [row.sentence for row in ASSUMPTIONS if any(map(row.concerns, atoms))]
    of_logits = [LOGITS[exact] for exact in sorted(set(exact_logits))]
    of_events = [
        sentence for row in rows for sentence in (of_logits if row == LOGITS[False] else [row])
    ]
    return [UNPREDICTABLE, *of_events, *(GRADIENT_SUMS[exact] for exact in sorted(set(exact_sums)))]


def exact_logits_of_draws(charges: Sequence[LedgerEntry]) -> list[bool]:
    """Reads off the charges of private prediction whether logits were computed exactly."""
    return [
        entry.parameters.get("decoder") == "exact"
        for entry in charges
        if entry.event is not None
        and any(isinstance(atom, BoundedRangeEvent) for atom in flatten(entry.event))
    ]


def exact_sums_of_training(charges: Sequence[LedgerEntry]) -> list[bool]:
    """Reads off the charges of each training whether gradients were added up exactly."""
    return [
        bool(entry.parameters.get("exact_sums", False))
        for entry in charges
        if entry.event is not None
        and not is_post_processing(entry.event)
        and "learning_rate" in entry.parameters
    ]
