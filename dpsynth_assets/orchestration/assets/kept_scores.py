"""Stores scores that need not be computed again, since they are drawn with fixed seeds.

Scores of a corpus are a function of its rows, the private records and their embeddings, the
settings of the evaluation, the embedder, the code, the libraries and the machine. A digest of all
of them says whether scores that were computed before are the ones that would be computed now.

**Privacy** Scores and digests depend on private records without noise: they stay in the owner-only
store, and go with it (`dpsynth purge`).
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import (
    TABLE,
    array_version,
    found,
    kept_file,
    version_of,
    version_of_texts,
)
from dpsynth_assets.metrics.evaluation import CorpusScores, EvaluationSettings, PrivateReference
from dpsynth_assets.metrics.metric import Estimate
from dpsynth_assets.metrics.registry import modules_outside
from dpsynth_assets.orchestration.resources.stores import Models, SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets.public_base.making import OpenedModels

FILE = "scores.json"


class KeptScores:
    """Scores of one dataset's last evaluation, by digest."""

    def __init__(self, store: SensitiveStore, dataset: str) -> None:
        self._store, self._dataset = store, dataset
        text = store.read_internal_text(dataset, FILE) or ""
        self._before: dict[str, Any] = found(text, lambda kept: dict(json.loads(kept))) or {}
        self._now: dict[str, Any] = {}

    def scores(self, digest: str, compute: Callable[[], CorpusScores]) -> CorpusScores:
        """Returns the scores of this digest; those that are not kept are computed and kept."""
        if found(digest, self._kept) is None:
            self._before[digest] = _to_json(compute())
            self._write(self._now | self._before)  # An evaluation that is cut continues from here.
        self._now[digest] = self._before[digest]
        return self._kept(digest)

    def drop_others(self) -> None:
        """Forgets what this evaluation did not ask for."""
        if self._now.keys() != self._before.keys():
            self._write(self._now)

    def _kept(self, digest: str) -> CorpusScores:
        return _from_json(self._before[digest])

    def _write(self, content: Mapping[str, Any]) -> None:
        self._store.write_internal(self._dataset, FILE, json.dumps(content))


def scores_version(
    settings: EvaluationSettings,
    reference: PrivateReference,
    public_texts: list[str],
    manifest: Mapping[str, Any],
    models: OpenedModels,
) -> str:
    """Digest of what all scores of an evaluation are a function of, the corpus aside.

    Args:
        settings: Constants of the evaluation.
        reference: The private records with their embeddings.
        public_texts: Documents whose spans are no leak.
        manifest: The text embedder.
        models: Opens it.
    """
    from dpsynth_assets.attacks.circumstances import (
        circumstances,
        code_behind,
        code_of,
        files_behind,
    )

    stated = json.dumps([dataclasses.asdict(settings), dict(manifest)], sort_keys=True, default=str)
    sides: list[Any] = [
        part
        for side in (reference.source, reference.held_out)
        for part in (version_of_texts(side.texts), list(side.labels), _of_array(side.features))
    ]
    sides += [reference.source_version, reference.source_label_count]
    public = version_of_texts(public_texts), list(reference.canaries)
    named = [each for each in (settings.encoder, settings.mauve.embedder) if each is not None]
    opened = [files_behind(each) for each in (manifest, *(each.model_dump() for each in named))]
    code = code_behind(type(models)), code_of(modules_outside())
    return version_of(stated, *sides, *public, opened, *code, circumstances())


def _of_array(values: np.ndarray) -> list[object]:
    return [str(values.dtype), list(values.shape), array_version(values)]


def _to_json(scores: CorpusScores) -> dict[str, Any]:
    estimates = {
        name: {"value": estimate.value, "draws": estimate.draws.tolist()}
        for name, estimate in scores.estimates.items()
    }
    return {**vars(scores), "estimates": estimates}


def _from_json(content: Mapping[str, Any]) -> CorpusScores:
    estimates = {
        name: Estimate(kept["value"], np.asarray(kept["draws"], dtype=np.float64))
        for name, kept in content["estimates"].items()
    }
    return CorpusScores(**{**content, "estimates": estimates})


# Reference corpora that need not be written again: they are drawn with a fixed seed.
#
# Floor and ceiling are functions of the dataset file, the language model, the code, the libraries
# and the machine, the ceiling also of the private records. A corpus that was written from equal
# ones is used again; a digest of all of them says so.
#
# **Privacy** The floor reads no private record and lies among public artifacts. The ceiling, and
# the digest of the records it was written from, stay in the owner-only store.


CEILING = "non_private_corpus"
_VERSION = f"{CEILING}.version"


def reference_version(
    spec: PrivateDatasetSpec, manifest: Mapping[str, Any], models: Models, *code: object
) -> str:
    """Digest of what a reference is a function of, the private records aside.

    Args:
        spec: The dataset, whole: what does not matter is not distinguished from what does.
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
    read = partial(store.read_internal_table, name=CEILING)
    return found(cohort, read) is not None


def keep_ceiling(store: SensitiveStore, cohort: str, version: str, rows: pl.DataFrame) -> None:
    """Stores the ceiling, its version last: an interrupted write has none."""
    store.remove_internal(cohort, _VERSION)
    store.write_internal_table(cohort, CEILING, rows)
    store.write_internal(cohort, _VERSION, version)
