"""Keys of all assets: `[dataset, folder, artifact]`, or `[public, base, artifact]`."""

import dagster as dg

from dpsynth_assets.methods.stages import SHARED

AUDIT = "audit"
"""Folder of the assets that audit a cohort."""

AUDIT_TRAIL, AGREES = "audit_trail", "ledger_agrees_with_event_log"
"""The audit trail of a cohort, and the check that ledger and event log agree."""

EVALUATION = "evaluation"
"""Folder of scores and pictures for the steward alone."""

EVALUATION_REPORT = f"{EVALUATION}/evaluation_report"
"""The asset of a cohort's scores, below the cohort."""

PREDICTION_COSTS = "prediction_costs"
REFERENCES = "references"


def public_key(base: str, artifact: str) -> dg.AssetKey:
    """Returns the key of one artifact of a public base."""
    return dg.AssetKey(["public", base, artifact])


def dataset_key(dataset: str, folder: str, artifact: str) -> dg.AssetKey:
    """Returns the key of one artifact of a dataset; the folder is a method, or `shared`."""
    return dg.AssetKey([dataset, folder, artifact])


def shared_key(dataset: str, artifact: str) -> dg.AssetKey:
    """Returns the key of what all methods of a dataset share."""
    return dataset_key(dataset, SHARED, artifact)


def audits_key(dataset: str) -> dg.AssetKey:
    """Returns the key of a cohort's mechanism audits."""
    return dataset_key(dataset, AUDIT, "mechanism_audits")


def prediction_costs_key(dataset: str) -> dg.AssetKey:
    """Returns the key of the costs of private prediction and the clusterings of one dataset."""
    return dataset_key(dataset, EVALUATION, PREDICTION_COSTS)
