"""What a release's sensitivity rests on: names of facts that a charge records for its label.

They are no part of a release's identity: a value that was paid for is not paid again because
another machine would compute it otherwise.
"""

RESTS_ON = "rests_on"
"""Parameter of a charge that holds these facts."""

EMBEDDINGS = "embeddings"
"""How private texts were embedded."""

GRADIENTS = "gradients"
"""Which records shared a pass when gradients were clipped."""

STATES = "states"
"""Which records shared a pass when hidden states were read."""
