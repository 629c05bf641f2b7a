"""Tag keys and values that the asset graph carries; the lineage check and the UI read them."""

from typing import Final

PRIVACY: Final = "dpsynth/privacy"
MECHANISM: Final = "dpsynth/mechanism"
RELEASE: Final = "dpsynth/release"
COHORT: Final = "dpsynth/cohort"
"""Tag of a run: the cohorts whose releases it asks for, in order of their names."""

ROUNDS: Final = "dpsynth/rounds"
"""Tag of a scheduled run: whole rounds that the budget held before it, e.g. "9 of 12 left"."""

EPSILON: Final = "dpsynth/epsilon"
"""Tag of a run: ε of all releases that it was charged for by now, composed by themselves.

"0" until a step pays. It is no part of any account: what they add to a cohort's total is in the
ledger.
"""

PLANNED_EPSILON: Final = "dpsynth/planned_epsilon"
"""Tag of a run: what the tag above is to say once all that it was launched for is paid."""

DEFAULT_RELEASE: Final = "1"
"""The release that a run makes where none is named."""

NAMED_RELEASE: Final = "dpsynth/named_release"
"""Tag of a run: the release that one of its steps was configured to make. It decides nothing."""

LAUNCHED_BY: Final = "dpsynth/launched_by"
"""Tag of a run: who asked for it, by the operating system's name, where that is known."""

PUBLIC: Final = "public"
SENSITIVE: Final = "sensitive"
RELEASED: Final = "released"
INTERNAL: Final = "internal"
PRIVACY_LEVELS: Final = frozenset({PUBLIC, SENSITIVE, RELEASED, INTERNAL})
