"""Attacks that need not run again: found with equal settings, code, libraries and machine.

An attack takes longer than most steps, and reads made-up or public records alone. What it found is
kept beside the results that labels print, under a digest of all that it depends on. Findings that
refute a claim are not kept: such an attack runs each time.

**Privacy** No private record is behind what is kept; whoever attacks private records must not use
this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.kept import JSON, found
from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.methods.attack_runs import Reconstruction
from dpsynth_assets.paths import home

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

    def read(kept: Any) -> tuple[Reconstruction, ...]:
        return tuple(_reconstruction(each) for each in kept)

    def is_held(made: tuple[Reconstruction, ...]) -> bool:
        return all(each.result.passed for each in made)

    return _kept(asset, settings, lambda: tuple(run()), is_held, read)


def medians_kept(asset: str, settings: str, run: Callable[[], MedianAudits]) -> Found[MedianAudits]:
    """Gives what a median audit found under equal settings, or else runs it; as above."""

    def is_held(made: MedianAudits) -> bool:
        return all(each.passed for each in made.results)

    return _kept(asset, settings, run, is_held, _medians)


def kept_attacks_folder() -> Path:
    """Folder of what is kept; to remove it makes every attack run again."""
    return home().audits.with_name("attacks_kept")


def _kept(
    asset: str,
    settings: str,
    run: Callable[[], Finding],
    is_held: Callable[[Finding], bool],
    value_of: Callable[[Any], Finding],
) -> Found[Finding]:
    """Gives what is kept of an attack, or runs it and keeps that; a refuted claim is forgotten."""
    from dpsynth_assets.attacks.circumstances import circumstances

    path = kept_attacks_folder() / f"{asset.replace('/', '.')}.json"
    digest = version_of(FORMAT, settings, circumstances())

    def read(place: Path) -> Found[Finding] | None:
        kept = JSON.read(place)
        if kept["digest"] != digest:
            return None
        return Found(value=value_of(kept["value"]), since=kept["found"])

    if (known := found(path, read)) is not None:
        return known
    made = run()
    if is_held(made):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        value = [asdict(each) for each in made] if isinstance(made, tuple) else asdict(made)
        write_whole(path, JSON.write({"digest": digest, "found": now, "value": value}))
    else:
        path.unlink(missing_ok=True)
    return Found(value=made, since="")


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
