"""Declarations of a partitioned dataset's cohorts, and the registry of the known ones.

A cohort's declaration is its file's, with a part of the source. The registry is a list of public
keys that only ever grows.

It lies under `DPSYNTH_HOME/cohorts`, a line a cohort, and the partitions of the dataset's assets
follow it. Nothing that a guarantee rests on is in it: a cohort's account is in the ledger, and a
list that was lost is written again from the calendar or the files.
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpsynth_assets.datasets.cohort_windows import CohortsSpec, Window
from dpsynth_assets.datasets.dataset_sections import SourceSpec
from dpsynth_assets.datasets.fields import Declaration
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.paths import home


class CohortPart(Declaration):
    """The part of a dataset that a cohort is.

    Attributes:
        dataset: The dataset whose file declares it.
        key: Its place among the cohorts, e.g. "2026_01".
        rule: How the dataset is partitioned, in words.
        window: Its records by date; None where it is one whole file.
    """

    dataset: str
    key: str
    rule: str
    window: Window | None = None


class CohortSpec(PrivateDatasetSpec):
    """One cohort of a partitioned dataset. No file can declare it: it follows from the rule."""

    part: CohortPart

    @classmethod
    def of(cls, spec: PrivateDatasetSpec, key: str) -> "CohortSpec":
        """The cohort `key` of a dataset that declares `cohorts`.

        The parts of the declaration were validated with the file, so nothing is validated again.
        """
        rule = spec.cohorts
        if rule is None:
            raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
        fields = {name: getattr(spec, name) for name in PrivateDatasetSpec.model_fields}
        fields |= {"name": cohort_name(spec.name, key), "cohorts": None}
        if rule.by == "file":
            path = Path(spec.source.path).parent / rule.file_name(key)
            fields["source"] = spec.source.with_file(str(path))
        window = rule.window(key) if rule.by == "window" else None
        part = CohortPart(dataset=spec.name, key=key, rule=rule.rule, window=window)
        return cls.model_construct({*spec.model_fields_set, "part"}, **fields, part=part)

    @property
    def dataset(self) -> str:
        """The dataset whose cohorts compose in parallel."""
        return self.part.dataset

    @property
    def partition(self) -> str | None:
        """The rule that partitions the dataset."""
        return self.part.rule

    @property
    def window(self) -> Window | None:
        """The cohort's records by date."""
        return self.part.window


def cohort_name(dataset: str, key: str | None) -> str:
    """Name of a cohort, which is its account in the ledger; None: the dataset is one cohort."""
    return dataset if key is None else f"{dataset}_{key}"


def name_in_file(spec: PrivateDatasetSpec) -> str:
    """Name in the dataset file, and first part of asset keys: a cohort has its dataset's."""
    return spec.part.dataset if isinstance(spec, CohortSpec) else spec.name


def registered_part(name: str) -> tuple[str, str | None]:
    """Dataset and key of a registered cohort; the name itself and None where it is none."""
    for place in sorted(_folder().glob("*.jsonl")):
        dataset = place.stem
        key = name.removeprefix(f"{dataset}_")
        if key != name and key in known_cohorts(dataset):
            return dataset, key
    return name, None


def complete_cohort(spec: PrivateDatasetSpec, key: str) -> CohortSpec:
    """The cohort `key` of a dataset; it is registered where it has become complete.

    Raises:
        ValueError: It is not complete yet, or the rule has no such cohort; in one line.
    """
    rule = spec.cohorts
    if rule is None:
        raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
    if key not in usable_cohorts(spec):
        if key not in complete_cohorts(rule, spec.source, _now()):
            raise ValueError(f"{cohort_name(spec.name, key)}: {rule.why_not(key)}")
        register_cohorts(spec.name, [key])
    return CohortSpec.of(spec, key)


def cohorts_of(spec: PrivateDatasetSpec) -> list[PrivateDatasetSpec]:
    """The known cohorts of a declaration, in order; itself where it is not partitioned."""
    if spec.cohorts is None:
        return [spec]
    return [CohortSpec.of(spec, key) for key in usable_cohorts(spec)]


def usable_cohorts(spec: PrivateDatasetSpec) -> list[str]:
    """Keys of the registered cohorts but windows ahead, which a clock set forward registered."""
    rule, today = spec.cohorts, _now().date()
    known = known_cohorts(spec.name)
    return [key for key in known if rule is None or not rule.is_ahead(key, today)]


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
    return register_cohorts(dataset, complete_cohorts(rule, source, _now()))


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _folder() -> Path:
    return home().root / "cohorts"


def _place(dataset: str) -> Path:
    return _folder() / f"{dataset}.jsonl"
