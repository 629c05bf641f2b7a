"""`dpsynth purge`: remove private intermediates, now or by age."""

import re
from collections.abc import Callable
from typing import Annotated

import typer

from dpsynth_assets.cli.cohorts import close_name
from dpsynth_assets.cli.terminal import AsJson, show_json
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger, sqlite_path

_AGE = re.compile(r"(\d+)([dhm])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60}


def purge(
    cohort: Annotated[
        str | None, typer.Argument(help="Purge this dataset only; default: all.")
    ] = None,
    older_than: Annotated[
        str, typer.Option(help="Only what was last written longer ago: 30d, 12h, 45m.")
    ] = "0m",
    unfinished: Annotated[
        bool,
        typer.Option(
            help="Also passes and checkpoints of charges that are not committed: they pay again."
        ),
    ] = False,
    contributions: Annotated[
        bool,
        typer.Option(help="Also the table that tells which releases used which record."),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only list what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove records, embeddings, internal tables and left-over checkpoints from the store."""
    from dpsynth_assets.orchestration.resources.stores import SensitiveStore
    from dpsynth_assets.sensitive.purging import PurgeRule, purge as remove

    if cohort is not None:
        _require_known(cohort)
    rule = PurgeRule(
        dataset=cohort,
        older_than_seconds=seconds_of(older_than),
        unfinished=unfinished,
        contributions=contributions,
    )
    removed = [str(path) for path in remove(SensitiveStore(), rule, waiting(), dry_run=dry_run)]
    if as_json:
        show_json({"dry_run": dry_run, "removed": removed})
        return
    for path in removed:
        typer.echo(path)
    verb = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(removed)} {verb}. To go on, materialise private_records again.")


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
    url = home().ledger_url
    path = sqlite_path(url)
    if path is not None and not path.exists():
        return lambda _: True
    try:
        ledger = Ledger(url)
        ledger.head()
    except PrivacyError:
        return lambda _: True
    return ledger.is_open
