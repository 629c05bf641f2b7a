"""Audits of the privacy mechanisms of an installation: claims, tests and planted bugs.

Read in this order: `audit` (claim, measurement, bugs, and what refutes a claim), one module a
family of mechanisms, `claims.yaml` (the words of each audit), and here: how audits are run, and
what this installation was last found to do, on disk for labels and cards. `methods.audits` lists
all. An audit that passes has found no evidence against its claim; it proves nothing. An audit
without a bug that it notices is worth nothing, so each has one.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from dpsynth_assets.attacks.audits import (
    accountants,
    gradients,
    ledger_rules,
    records,
    shared_passes,
    sums,
    token_choices,
    token_draws,
)
from dpsynth_assets.attacks.audits.audit import Audit, AuditResult, Bug
from dpsynth_assets.attacks.circumstances import circumstances
from dpsynth_assets.files.whole import write_whole

_MODULES = sums, token_draws, token_choices, shared_passes, gradients, records, ledger_rules
MECHANISM_AUDITS: tuple[Audit, ...] = tuple(
    audit for module in (*_MODULES, accountants) for audit in module.AUDITS
)
"""Audits of mechanisms; `methods.audits` adds those of methods."""


def run_audits(
    audits: Sequence[Audit],
    report: Callable[[float, str], None] = lambda _share, _message: None,
    *,
    with_planted_bugs: bool = False,
) -> list[AuditResult]:
    """Runs audits one after another, each on the real code and then on its planted bugs.

    Args:
        audits: Which to run.
        report: Called with the share done in [0, 1] and what runs next.
        with_planted_bugs: Whether also to check that each audit notices its bugs.

    Returns:
        One result a run; a result with a `bug` is `good` where it did not pass.
    """
    runs: list[tuple[Audit, Bug | None]] = []
    for audit in audits:
        runs += [(audit, None), *((audit, bug) for bug in audit.planted if with_planted_bugs)]
    results = []
    for done, (audit, bug) in enumerate(runs):
        report(done / len(runs), audit.name if bug is None else f"{audit.name}, planted: {bug}")
        results.append(audit.run(bug))
    report(1.0, f"{len(audits)} audits done")
    return results


def latest_results(path: Path, *, with_planted_bugs: bool = False) -> list[AuditResult]:
    """Reads the last result of every audit; none where there is no file.

    Args:
        path: File that `save_results` wrote.
        with_planted_bugs: Whether also to read the results of planted bugs, which are good where
            they did not pass.

    Raises:
        ValueError: The file is not one that `save_results` wrote.
    """
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        results = [AuditResult(**result) for result in document["results"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"Expected audit results in {path}, got something else. Remove the file and run "
            "`dpsynth audit run`."
        ) from None
    return [result for result in results if with_planted_bugs or result.bug is None]


def save_results(path: Path, results: Sequence[AuditResult]) -> None:
    """Puts results in the place of older ones of the same audit, settings and bug; keeps others."""
    earlier = latest_results(path, with_planted_bugs=True)
    latest = {(result.name, result.settings, result.bug): result for result in [*earlier, *results]}
    document = {"results": [asdict(result) for result in latest.values()]}
    write_whole(path, json.dumps(document, indent=2) + "\n")


def still_valid(path: Path, audits: Sequence[Audit]) -> list[AuditResult]:
    """Reads the results of audits that would find the same again: equal code, libraries, machine.

    A failed audit is none of them. It is always run again, as a statistical one may fail by chance.

    Args:
        path: File that `save_results` wrote, or none.
        audits: Whose results are asked for.
    """
    names = {audit.name for audit in audits}
    return [
        result
        for result in latest_results(path)
        if result.name in names and result.passed and result.circumstances == circumstances()
    ]
