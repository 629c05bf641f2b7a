"""What a label says of records that pass through a model: gradients, and states that are read."""

from collections.abc import Sequence

from dpsynth_assets.privacy.directed_rounding import rounded_down
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import LedgerEntry
from dpsynth_assets.privacy.rests_on import GRADIENTS, RESTS_ON, STATES

SAME_PASS = "passes of one record are assumed to give the same bits each time"

GRADIENTS_ALONE = (
    "Every record passes through the model alone in training, so that its clipped gradient is a "
    f"function of it and of the model: {SAME_PASS}."
)

GRADIENTS_IN_COMPANY = (
    "Where records share a pass in training, a record's clipped gradient moves by at most "
    "{gradient_slack} of the clipping bound when its batch mates change; this is measured, not "
    "proved. It is kept back of the bound for {most_in_company} records; records of larger batches "
    f"pass alone ({SAME_PASS})."
)

GRADIENTS_UNKNOWN = (
    "What a record's batch mates change in its clipped gradient is not covered for charges before "
    "version 0.2.0: longer mates could move it by some 6e-4 of the clipping bound."
)

STATES_ALONE = (
    "Every record's hidden states are read in a pass that holds it alone, in the numbers that the "
    f"model has: {SAME_PASS}."
)

STATES_UNKNOWN = (
    "Hidden states of several records were read in one pass for charges before version 0.2.0. That "
    "a record's place among others does not move its states is assumed."
)


def pass_assumptions(charges: Sequence[LedgerEntry]) -> list[str]:
    """What trainings and dataset vectors take for granted of passes, one sentence each, once."""
    sentences = []
    for entry in charges:
        if entry.event is None or is_post_processing(entry.event):
            continue
        facts = entry.parameters.get(RESTS_ON, {})
        if "learning_rate" in entry.parameters:
            sentences.append(_of_gradients(facts.get(GRADIENTS)))
        if "vector_noise_multiplier" in entry.parameters:
            sentences.append(STATES_UNKNOWN if STATES not in facts else STATES_ALONE)
    return list(dict.fromkeys(sentences))


def _of_gradients(facts: dict[str, object] | None) -> str:
    if facts is None:
        return GRADIENTS_UNKNOWN
    if facts["passes"] == "alone":
        return GRADIENTS_ALONE
    # An assumption of a smaller move is the stronger one: what is kept back covers it.
    slack = rounded_down(float(str(facts["gradient_slack"])), ".3g")
    return GRADIENTS_IN_COMPANY.format(
        gradient_slack=slack, most_in_company=facts["most_in_company"]
    )
