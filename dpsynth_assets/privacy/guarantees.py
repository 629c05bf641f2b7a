"""The kinds of guarantee the ledger keeps apart. Numbers of different kinds are never summed."""

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
