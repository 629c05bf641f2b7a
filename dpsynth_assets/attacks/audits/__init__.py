"""Audits that a privacy officer runs on his own installation: claims, tests and planted bugs.

Read in this order: `statistics` (what refutes a claim), `attained` (attacks whose ε is exact),
`audit` (claim, measurement, bugs), one module a family of mechanisms, `registry` (all of them)
and `stored` (results on disk). An audit that passes has found no evidence against its claim; it
proves nothing. An audit without a bug that it notices is worth nothing, so each has one.
"""

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, AuditResult, Bug, event_types
from dpsynth_assets.attacks.audits.registry import (
    AUDITS,
    audits_for,
    find_audit,
    planters,
    run_audits,
)
from dpsynth_assets.attacks.audits.stored import (
    latest_results,
    results_for,
    save_results,
    still_valid,
)

__all__ = [
    "AUDITS",
    "Audit",
    "AuditKind",
    "AuditResult",
    "Bug",
    "audits_for",
    "event_types",
    "find_audit",
    "latest_results",
    "planters",
    "results_for",
    "run_audits",
    "save_results",
    "still_valid",
]
