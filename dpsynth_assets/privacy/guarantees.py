"""The kinds of guarantee the ledger keeps apart, and the facts that sensitivities rest on.

Numbers of different kinds are never summed. A charge records the facts for its label; they are no
part of a release's identity: a value that was paid for is not paid again because another machine
would compute it otherwise. This module needs no database: methods name these facts where no ledger
is installed.
"""

from enum import StrEnum


class GuaranteeType(StrEnum):
    """The promise of a release.

    DP: (ε, δ)-differential privacy, for every dataset and every event.
    EX_POST: a data- and output-dependent bound (Amin 2025, Definition 2); not (ε, δ)-DP, and the
    bound itself is not sanitised.
    SECRET: (p, r)-secret protection; kept as dominating pairs.
    NONE: no guarantee; the value must stay internal.
    """

    DP = "dp"
    EX_POST = "ex-post"
    SECRET = "secret"
    NONE = "none"


RESTS_ON = "rests_on"
"""Parameter of a charge that holds these facts."""

EMBEDDINGS = "embeddings"
"""The way in which private texts were embedded."""

GRADIENTS = "gradients"
"""The records that shared a pass when gradients were clipped."""

STATES = "states"
"""The records that shared a pass when hidden states were read."""

SELF_TEST = "self_test"
"""The test in which no row of a pass moved another's logits, where rounding is not charged."""

MEASURED_SLACK = "measured_slack"
"""The most that a row of a pass moved another's logits, where they are rounded below float32."""
