"""Removes private intermediate files: after a cohort is finished, by age, or on request.

What is removed: records, embeddings, internal tables, and plain files that a killed process left.
What stays unless it is asked for: finished passes and checkpoints of a charge that is not committed
yet (without them the next run pays again; the records that were sorted for its passes go), and the
contribution table (it holds hashes, and people may ask after the data is gone). Fingerprints of
records that a paid release has read always stay: without them a second file over the same records
would have a second budget; so do their digests, by which replaced records are told. Ledger, stored
releases and reports are not in this store.

Removal unlinks files, or deletes objects. On disks that keep old blocks, encrypt the store
(`sealing.py`): without the key what is left there cannot be read. A bucket may keep old versions.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpsynth_assets.paths import Folder
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.schema import PURGE
from dpsynth_assets.sensitive.fingerprints import Fingerprints
from dpsynth_assets.sensitive.private_files import (
    PrivateFiles,
    abandoned_plain_folders,
    files_below,
)
from dpsynth_assets.sensitive.record_parts import EXCHANGE, NAMED, texts_of
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.sensitive.stored_parts import INPUTS, left_for_workers

AFTER_SUCCESS_VARIABLE = "DPSYNTH_PURGE_AFTER_SUCCESS"
"""Environment variable: `1` purges a cohort once a run that wrote its statement has succeeded."""

_UNFINISHED, _CONTRIBUTIONS = "passes", "contributions"


@dataclass(frozen=True, kw_only=True)
class PurgeRule:
    """Selection of what is removed.

    Attributes:
        dataset: Only of this dataset; None: of all.
        older_than_seconds: Only what was last written longer ago.
        unfinished: Also passes and checkpoints of charges that are not committed.
        contributions: Also the contribution table.

    Raises:
        ValueError: The dataset is a path: it would name something else than a folder of the store.
    """

    dataset: str | None = None
    older_than_seconds: float = 0.0
    unfinished: bool = False
    contributions: bool = False

    def __post_init__(self) -> None:
        """Refuses a path in place of a name."""
        name = self.dataset
        if name is not None and (not name or name.startswith(".") or Path(name).name != name):
            raise ValueError(
                f"Expected the name of a dataset, got {name!r}. Name one, not a path: everything "
                "in the folder of that name is removed."
            )


def purge(
    store: StoredRecords,
    rule: PurgeRule,
    is_open: Callable[[str], bool],
    *,
    dry_run: bool = False,
) -> list[Folder]:
    """Removes what the rule names and returns it.

    Args:
        store: The sensitive store.
        rule: What to remove.
        is_open: Whether a reservation is charged and not committed.
        dry_run: Only say what would be removed.
    """
    files, base = files_below(store.base), store.base
    prints = Fingerprints(files, base)
    candidates = [*_candidates(files, base, rule, is_open), *prints.removable(rule.dataset)]
    chosen = [place for place in candidates if _is_due(files, place, rule)]
    plain = abandoned_plain_folders() if rule.dataset is None else []
    if not dry_run:
        for place in chosen:
            _remove(files, place)
        for folder in plain:  # Of this machine, wherever the store is.
            shutil.rmtree(folder)
    return [*chosen, *plain]


def recorded_purge(
    store: StoredRecords,
    rule: PurgeRule,
    is_open: Callable[[str], bool],
    opened: Callable[[], Ledger],
) -> list[Folder]:
    """Removes what the rule names and returns it; the ledger says before who does it.

    Where the ledger cannot be written, as on a full disk, room is made first.

    Args:
        store: The sensitive store.
        rule: What to remove.
        is_open: Whether a reservation is charged and not committed.
        opened: Opens the ledger.

    Raises:
        PrivacyError: The purge could not be recorded; it was made.
    """
    found = purge(store, rule, is_open, dry_run=True)
    told = {name: value for name, value in vars(rule).items() if name != "dataset"}

    def record() -> None:
        opened().record(PURGE, told, rule.dataset or "")

    if not found:
        return found
    try:
        record()
    except PrivacyError:
        purge(store, rule, is_open)
        try:
            record()
        except PrivacyError as problem:
            raise PrivacyError(f"Removed, which is not in the ledger: {problem}") from None
        return found
    return purge(store, rule, is_open)


def kept_datasets(store: StoredRecords) -> list[str]:
    """Names of the datasets that have a folder in the store."""
    files = files_below(store.base)
    return [each.name for each in files.matching(store.base, "[!.]*") if files.is_folder(each)]


def purges_after_success() -> bool:
    """Says whether cohorts are purged once they are finished."""
    return os.environ.get(AFTER_SUCCESS_VARIABLE, "") == "1"


def _candidates(
    files: PrivateFiles, base: Folder, rule: PurgeRule, is_open: Callable[[str], bool]
) -> Iterator[Folder]:
    named = [] if rule.dataset is None else [base / rule.dataset]
    for folder in filter(files.is_folder, named or files.matching(base, "[!.]*")):
        # First what names the parts: a process that writes into them looks for it afterwards.
        for place in sorted(files.matching(folder, "*"), key=lambda each: each.name != NAMED):
            if place.name == _UNFINISHED:
                for kept in files.matching(place, "*"):
                    whole = rule.unfinished or not is_open(kept.name)
                    yield from [kept] if whole else left_for_workers(files, kept)
            elif place.name != _CONTRIBUTIONS or rule.contributions:
                yield place


def _remove(files: PrivateFiles, place: Folder) -> None:
    """Removes a folder or a file; a run that reads the records of a pass finds all or none."""
    if INPUTS in place.name or EXCHANGE in place.name:
        files.withdraw(place)
        return
    for handed in left_for_workers(files, place):
        files.withdraw(handed)
    files.remove(place)


def _is_due(files: PrivateFiles, place: Folder, rule: PurgeRule) -> bool:
    """Says whether its texts, or else its newest file, are old enough; of any age without a clock.

    Shards go whole, and what names them goes with them.
    """
    if rule.older_than_seconds <= 0:
        return True
    written = max(map(files.last_written, texts_of(files, place)), default=0.0)
    return time.time() - written >= rule.older_than_seconds
