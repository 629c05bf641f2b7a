"""Audit results on disk: what this installation was last found to do, for labels and cards."""

import importlib.metadata
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpsynth_assets.attacks.audits.audit import Audit, AuditResult
from dpsynth_assets.attacks.audits.registry import audits_for
from dpsynth_assets.attacks.circumstances import circumstances
from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.privacy.events import Event

FORMAT = 1
PACKAGES = ("dpsynth_assets", "dp_accounting", "numpy", "opendp", "scipy", "torch")


def environment() -> dict[str, str]:
    """Versions of what the audits of this process run on."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {**versions, "python": platform.python_version(), "machine": platform.machine()}


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
    document = {
        "format": FORMAT,
        "environment": environment(),
        "results": [asdict(result) for result in latest.values()],
    }
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


def results_for(path: Path, events: Iterable[Event | None]) -> list[dict[str, Any]]:
    """Picks the last results that releases of these events rest on, as a label prints them.

    Args:
        path: File that `save_results` wrote, or none.
        events: As `audits_for` takes them.

    Returns:
        One mapping an audit that was run here, with its result, mechanism, claim and measure.
    """
    latest = {result.name: result for result in latest_results(path)}
    return [
        {
            **latest[audit.name].printed(),
            "mechanism": audit.mechanism,
            "claim": audit.claim,
            "measure": audit.measure,
        }
        for audit in audits_for(events)
        if audit.name in latest
    ]
