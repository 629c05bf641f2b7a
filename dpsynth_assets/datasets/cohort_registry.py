"""Registry of the known cohorts of a partitioned dataset: public keys, only ever added to.

Definitions load from this list and not from the clock, so that a run and the web UI, started at
different moments, see the same assets. It lies under `DPSYNTH_HOME/cohorts`, a line a cohort.
Nothing that a guarantee rests on is in it: a cohort's account is in the ledger, and a list that was
lost is written again from the calendar or the files.
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpsynth_assets.datasets.cohort_windows import CohortsSpec
from dpsynth_assets.datasets.dataset_sections import SourceSpec
from dpsynth_assets.paths import home


def known_cohorts(dataset: str) -> list[str]:
    """Keys of the registered cohorts, sorted, which is in order of time."""
    place = _place(dataset)
    if not place.exists():
        return []
    lines = place.read_text(encoding="utf-8").splitlines()
    return sorted({str(json.loads(line)["key"]) for line in lines if line.endswith("}")})


def register_cohorts(dataset: str, keys: Sequence[str]) -> list[str]:
    """Adds cohorts to the list; returns those that were not in it.

    Appending a line is atomic, and a key written twice is read once: two processes may register
    the same cohort at the same time.
    """
    known = set(known_cohorts(dataset))
    new = [key for key in keys if key not in known]
    if new:
        place = _place(dataset)
        place.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [json.dumps({"key": key, "registered_at": now}) + "\n" for key in new]
        with place.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
    return new


def complete_cohorts(rule: CohortsSpec, source: SourceSpec, now: datetime) -> list[str]:
    """Keys of the cohorts that are complete at `now`, in order.

    **Privacy** Follows from the calendar, or from names and times of files: no record is read.
    """
    if rule.by == "window":
        return rule.complete_windows(now.astimezone(UTC).date())
    settled = now.timestamp() - 60 * rule.settle_minutes
    keys = {
        key: path
        for path in matching_files(source)
        if (key := rule.file_key(path.name)) is not None and path.stat().st_mtime <= settled
    }
    return sorted(keys)


def matching_files(source: SourceSpec) -> list[Path]:
    """Files of a local source whose wildcard is in the file name, sorted."""
    pattern = Path(source.path)
    return sorted(path for path in pattern.parent.glob(pattern.name) if path.is_file())


def register_complete(dataset: str, rule: CohortsSpec, source: SourceSpec) -> list[str]:
    """Registers every cohort that is complete by now; returns the new ones."""
    now = datetime.fromtimestamp(time.time(), UTC)
    return register_cohorts(dataset, complete_cohorts(rule, source, now))


def _place(dataset: str) -> Path:
    return home().root / "cohorts" / f"{dataset}.jsonl"
