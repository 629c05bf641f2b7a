"""Reference corpora that need not be written again: they are drawn with a fixed seed.

Floor and ceiling are functions of the dataset file, the language model, the code, the libraries and
the machine, the ceiling also of the private records. A corpus that was written from equal ones is
used again; a digest of all of them says so.

**Privacy** The floor reads no private record and lies among public artifacts. The ceiling, and the
digest of the records it was written from, stay in the owner-only store.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.files.kept import TABLE, found, kept_file
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore
from dpsynth_assets.paths import home

CEILING = "non_private_corpus"
_VERSION = f"{CEILING}.version"


def reference_version(
    spec: PrivateDatasetSpec, manifest: Mapping[str, Any], models: Models, *code: object
) -> str:
    """Digest of what a reference is a function of, the private records aside.

    Args:
        spec: The dataset, whole: what does not matter is not told apart from what does.
        manifest: The public language model.
        models: Opens it.
        code: Versions of what writes the reference.
    """
    from dpsynth_assets.attacks.circumstances import circumstances, code_behind, files_behind

    stated = json.dumps(dict(manifest), sort_keys=True, default=str)
    model = stated, files_behind(manifest)
    return version_of(spec, model, code_behind(type(models)), list(code), circumstances())


def kept_floor(cohort: str, version: str, write: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """Reads the floor of this version, or writes and keeps it in place of an earlier one."""
    path = home().artifacts / "references" / cohort / f"{version}.parquet"
    rows = kept_file(path, write, TABLE)
    for other in path.parent.glob("*.parquet"):
        if other != path:
            other.unlink(missing_ok=True)
    return rows


def version_with_records(version: str, records: pl.DataFrame) -> str:
    """Digest of a reference that is written from these records, in their order."""
    return version_of(
        version, version_of_texts(records["text"].to_list()), records["label"].to_list()
    )


def ceiling_is_kept(store: SensitiveStore, cohort: str, version: str) -> bool:
    """Says whether the stored ceiling is of this version, and can be read."""
    if store.read_internal_text(cohort, _VERSION) != version:
        return False
    read = partial(store.read_internal_table, name=CEILING, purpose="internal evaluation")
    return found(cohort, read) is not None


def keep_ceiling(store: SensitiveStore, cohort: str, version: str, rows: pl.DataFrame) -> None:
    """Stores the ceiling, its version last: an interrupted write has none."""
    store.remove_internal(cohort, _VERSION)
    store.write_internal_table(cohort, CEILING, rows)
    store.write_internal(cohort, _VERSION, version)
