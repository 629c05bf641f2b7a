"""`dpsynth purge` removes private files of this machine; `dpsynth leak-scan` searches its files."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_assets.cli.cohorts import CohortIfAny, close_name
from dpsynth_assets.cli.ledger import open_ledger
from dpsynth_assets.cli.terminal import complain, say
from dpsynth_assets.paths import SENSITIVE_VARIABLE, home
from dpsynth_assets.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from dpsynth_assets.attacks.leak_scan import LeakReport

_AGE = re.compile(r"(\d+)([dhm])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60}


def purge(
    cohort: CohortIfAny = None,
    older_than: str = "0m",
    unfinished: bool = False,
    contributions: bool = False,
    dry_run: bool = False,
) -> None:
    """Remove records, embeddings, internal tables and old checkpoints from the sensitive store.

    The ledger records who removed them.

    Args:
        cohort: Purge this dataset only; default: all.
        older_than: Remove only files last written longer ago than this: 30d, 12h, 45m.
        unfinished: Also remove passes and checkpoints of charges that are not committed: such
            releases are charged again.
        contributions: Also remove the table that says which releases used which record.
        dry_run: Only list what would be removed.
    """
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, SensitiveStore
    from dpsynth_assets.sensitive.purging import PurgeRule, purge as found, recorded_purge

    if cohort is not None:
        _require_known(cohort)
    rule = PurgeRule(
        dataset=cohort,
        older_than_seconds=seconds_of(older_than),
        unfinished=unfinished,
        contributions=contributions,
    )
    asked = SensitiveStore(), rule, waiting()
    chosen = (
        found(*asked, dry_run=True) if dry_run else recorded_purge(*asked, PrivacyLedger().open)
    )
    removed = [str(path) for path in chosen]
    verb = "would be removed" if dry_run else "removed"
    say(*removed, f"{len(removed)} {verb}. To continue, materialise private_records again.")


def _require_known(cohort: str) -> None:
    """Refuses a name that neither the store nor a dataset file has: a path, or a misspelt one.

    Raises:
        typer.BadParameter: It is unknown.
    """
    from dpsynth_assets.datasets import dataset_folders, standing
    from dpsynth_assets.orchestration.resources.stores import SensitiveStore
    from dpsynth_assets.sensitive.purging import kept_datasets

    known = {*kept_datasets(SensitiveStore())}
    if cohort not in known:
        known |= standing(dataset_folders()).cohorts.keys()
    if cohort not in known:
        hint = close_name(cohort, known) or "`--dry-run` without a name lists all."
        raise typer.BadParameter(
            f"Expected the name of a dataset in the sensitive store, got {cohort!r}. {hint}"
        )


def seconds_of(age: str) -> float:
    """Reads 30d, 12h or 45m.

    Raises:
        typer.BadParameter: It is none of these.
    """
    match = _AGE.fullmatch(age)
    if match is None:
        raise typer.BadParameter(f"Expected an age such as 30d, 12h or 45m, got {age!r}.")
    return float(int(match[1]) * _SECONDS[match[2]])


def waiting() -> Callable[[str], bool]:
    """Tells whether the ledger still waits for a reservation's release.

    Where the ledger cannot be read every reservation counts as waiting: what it paid for stays.
    """
    try:
        ledger = open_ledger()
        ledger.head()
    except PrivacyError:
        return lambda _: True
    return ledger.is_open


def leak_scan(
    canaries: Annotated[Path, typer.Option()],
    folders: Annotated[list[Path] | None, typer.Argument()] = None,
) -> None:
    """Search every byte outside the sensitive store for canaries; exit code 1 if one is found.

    Args:
        canaries: File with one canary per line, each of at least eight bytes.
        folders: Where to search; default: DPSYNTH_HOME and DAGSTER_HOME.
    """
    from dpsynth_assets.attacks.leak_scan import scan_folders

    elsewhere = bool(os.environ.get(SENSITIVE_VARIABLE))
    exclude = [] if elsewhere else [home().local_sensitive]
    report = scan_folders(folders or _written(), _listed(canaries), exclude=exclude)
    if elsewhere:
        typer.echo(
            f"{SENSITIVE_VARIABLE} is set: its encrypted objects were not searched, only folders "
            "of this machine.",
            err=True,
        )
    _print(report)
    if not report.clean:
        raise typer.Exit(1)


def _written() -> list[Path]:
    """Everything this installation writes."""
    dagster = Path(os.environ.get("DAGSTER_HOME", home().dagster))
    return [home().root, *([dagster] if dagster.is_dir() else [])]


def _listed(file: Path) -> list[str]:
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    if not any(lines):
        raise typer.BadParameter(f"Expected canaries in {file}, got none.")
    return [line for line in lines if line]


def _print(report: "LeakReport") -> None:
    say(
        f"{report.canaries} canaries as {report.patterns} patterns in {report.files} files, "
        f"{report.bytes_searched / 1e6:.1f} MB: {len(report.leaks)} leaks."
    )
    complain(
        *(f"{leak.path}: {leak.canaries} canaries ({leak.spelling})" for leak in report.leaks),
        *(f"not read: {problem}" for problem in report.unread),
    )
