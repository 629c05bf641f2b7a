"""Releases without a click: schedules, and first runs of new cohorts.

Both start switched off, both ask the ledger before they ask for a run, and both say why they do
not. What costs nothing follows by itself (`assets/automation.py`).
"""

from dpsynth_assets.orchestration.schedules.new_cohorts import new_cohort_definitions
from dpsynth_assets.orchestration.schedules.newest_cohort import newest_cohort_definitions
from dpsynth_assets.orchestration.schedules.refusals import (
    first_run_refusal,
    pending_refusal,
    refusal_of,
)
from dpsynth_assets.orchestration.schedules.regeneration import (
    regeneration_definitions,
    row_settings,
)

__all__ = [
    "first_run_refusal",
    "new_cohort_definitions",
    "newest_cohort_definitions",
    "pending_refusal",
    "refusal_of",
    "regeneration_definitions",
    "row_settings",
]
