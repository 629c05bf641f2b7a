"""Groups of the asset graph, named so that the order of their names is the order of the data.

The web UI lists groups by name. A digit in front of each step of a cohort, and of the public bases
that all cohorts build on, makes that list read from public data down to the privacy statement.
"""

from enum import StrEnum

from dpsynth_assets.methods.dataset_plan import PlannedMethod

PUBLIC_BASES = "0_public"
"""First of all: names of cohorts begin with a letter."""


class Step(StrEnum):
    """Steps of one cohort that are no methods, in the order in which data passes through them."""

    RECORDS = "1_records"
    """Private records, embeddings and secrets, and the counts that all methods share."""

    AUDITS = "2_audits"
    """Mechanisms tested on made-up records, before anything is published."""

    REFERENCES = "4_references"
    """Floor and ceiling, written without privacy or without records."""

    EVALUATION = "5_evaluation"
    """Scores and pictures for the steward alone."""

    STATEMENT = "6_statement"
    """What is said once everything is done: privacy statement and audit trail."""


METHOD_STEP, SECOND_METHOD_STEP = "3", "4"


def public_group(base: str) -> str:
    """Group of one public base."""
    return f"{PUBLIC_BASES}/{base}"


def step_group(dataset: str, step: Step) -> str:
    """Group of one step of a cohort."""
    return f"{dataset}/{step}"


def method_group(dataset: str, planned: PlannedMethod) -> str:
    """Group of one method of a cohort; a method that builds on other corpora comes after them."""
    step = SECOND_METHOD_STEP if planned.method.builds_on else METHOD_STEP
    return f"{dataset}/{step}_{planned.folder}"
