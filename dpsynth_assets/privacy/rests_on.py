"""Names of the facts that a release's sensitivity rests on, which a charge records for its label.

They are no part of a release's identity: a value that was paid for is not paid again because
another machine would compute it otherwise. This module needs no database: methods name these facts
where no ledger is installed.
"""

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
