"""Attacks that need not run again: found with equal settings, code, libraries and machine.

An attack takes longer than most steps, and reads made-up or public records alone. What it found is
kept beside the results that labels print, under a digest of all that it depends on. Findings that
refute a claim are not kept: such an attack runs each time.

**Privacy** No private record is behind what is kept; whoever attacks private records must not use
this module.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dpsynth_assets.methods.attack_runs import Reconstruction
from dpsynth_assets.paths import home
from dpsynth_assets.storage.identity import version_of

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import AuditResult
    from dpsynth_assets.attacks.median_audit import BatchGap

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class MedianAudits:
    """Audits of the medians of a dataset's methods.

    Attributes:
        gaps: By folder of the method, what neighbours attain in each batch.
        results: What labels print of them.
    """

    gaps: "Mapping[str, tuple[BatchGap, ...]]"
    results: "tuple[AuditResult, ...]"


Finding = TypeVar("Finding", tuple[Reconstruction, ...], MedianAudits)


@dataclass(frozen=True, kw_only=True)
class Found(Generic[Finding]):
    """What an attack found, and since when it holds.

    Attributes:
        value: The findings.
        since: When they were found, ISO 8601; empty where it was now.
    """

    value: Finding
    since: str


def reconstructions_kept(
    asset: str, settings: str, run: Callable[[], list[Reconstruction]]
) -> Found[tuple[Reconstruction, ...]]:
    """Gives what a reconstruction test found under equal settings, or else runs it.

    Args:
        asset: Key of the attack's asset.
        settings: Digest of all that it depends on, code, libraries and machine aside.
        run: Runs it.
    """
    kept = _read(asset, settings)
    if kept is not None:
        found = tuple(_reconstruction(each) for each in kept["value"])
        return Found(value=found, since=kept["found"])
    made = tuple(run())
    passed = all(each.result.passed for each in made)
    _write(asset, settings, [asdict(each) for each in made], passed=passed)
    return Found(value=made, since="")


def medians_kept(asset: str, settings: str, run: Callable[[], MedianAudits]) -> Found[MedianAudits]:
    """Gives what a median audit found under equal settings, or else runs it; as above."""
    kept = _read(asset, settings)
    if kept is not None:
        return Found(value=_medians(kept["value"]), since=kept["found"])
    made = run()
    passed = all(each.passed for each in made.results)
    _write(asset, settings, asdict(made), passed=passed)
    return Found(value=made, since="")


def kept_attacks_folder() -> Path:
    """Folder of what is kept; to remove it makes every attack run again."""
    return home().audits.with_name("attacks_kept")


def _file(asset: str) -> Path:
    return kept_attacks_folder() / f"{asset.replace('/', '.')}.json"


def _digest(settings: str) -> str:
    from dpsynth_assets.attacks.circumstances import circumstances

    return version_of(FORMAT, settings, circumstances())


def _read(asset: str, settings: str) -> dict[str, Any] | None:
    """The kept document; None where there is none, or one of something else."""
    try:
        document = json.loads(_file(asset).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_one = isinstance(document, dict) and document.get("digest") == _digest(settings)
    return document if is_one else None


def _write(asset: str, settings: str, value: Any, *, passed: bool) -> None:
    """Replaces what is kept of an attack, at once; forgets it where a claim was refuted."""
    path = _file(asset)
    if not passed:
        path.unlink(missing_ok=True)
        return
    found = datetime.now(UTC).isoformat(timespec="seconds")
    document = {"digest": _digest(settings), "found": found, "value": value}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)


def _reconstruction(fields: Mapping[str, Any]) -> Reconstruction:
    from dpsynth_assets.attacks.audits import AuditResult
    from dpsynth_assets.attacks.reconstruction import Overlap, Rate

    def overlap(written: Mapping[str, Any]) -> Overlap:
        rates = {name: Rate(**written[name]) for name in ("source", "held_out")}
        return Overlap(**{**written, **rates})

    return Reconstruction(
        method=fields["method"],
        model=fields["model"],
        overlap=overlap(fields["overlap"]),
        control=overlap(fields["control"]),
        result=AuditResult(**fields["result"]),
    )


def _medians(fields: Mapping[str, Any]) -> MedianAudits:
    from dpsynth_assets.attacks.audits import AuditResult
    from dpsynth_assets.attacks.median_audit import BatchGap

    gaps = {
        folder: tuple(BatchGap(**batch) for batch in batches)
        for folder, batches in fields["gaps"].items()
    }
    return MedianAudits(
        gaps=gaps, results=tuple(AuditResult(**result) for result in fields["results"])
    )
