"""Incidence of secrets in private records: which record holds which. Everything here is private.

Secrets are found by detectors, or named by a column of the source: the user's own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import SecretKindSpec, SecretsSpec
from dpsynth_assets.records.record_filters import REASON, column_names, judge, record_ids
from dpsynth_assets.records.sources import read_source
from dpsynth_assets.secret_detection.detectors import Detector, detector_of, normalised

_RECORD = "__record_id"


def values_of_columns(spec: PrivateDatasetSpec) -> dict[str, Mapping[str, set[str]]]:
    """Reads the columns that secrets come from.

    Returns:
        Kind -> record id -> values of its column; blank values are none. Records without an id
        column that have the same content share an id, and then each other's values.

    Raises:
        SourceError: The source is missing, broken, or lacks a column.

    **Privacy** Private. Reads the source again: canonical records keep no other columns.
    """
    declared = spec.secrets.kinds if spec.secrets is not None else []
    columns = {kind.name: str(kind.column) for kind in declared if kind.detector == "column"}
    if not columns:
        return {}
    names = column_names(spec)
    extra = {f"secrets.kinds.{kind}.column": column for kind, column in columns.items()}
    raw = read_source(spec.source, replace(names, others={**names.others, **extra}))
    judged = pl.concat(
        [judge(raw, spec), raw.select(pl.col(c).alias(f"__{c}") for c in set(columns.values()))],
        how="horizontal",
    )
    kept = judged.filter(pl.col(REASON).is_null())
    kept = kept.with_columns(pl.Series(_RECORD, record_ids(kept, spec), dtype=pl.String))
    return {kind: _by_record(kept, f"__{column}") for kind, column in columns.items()}


def _by_record(kept: pl.DataFrame, column: str) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for record, value in kept.select(_RECORD, column).iter_rows():
        if value is not None and value.strip():
            found[record].add(value)
    return found


ShareCallback = Callable[[float], None]

RECORDS_AT_A_TIME = 1_000

_ANY = ""
"""The one value of a kind whose secret is to hold any."""


@dataclass(frozen=True, kw_only=True)
class SecretIncidence:
    """Findings of detectors. Their repr shows nothing of them, not even how many.

    Attributes:
        table: UInt32 columns `record` (row of the records) and `secret`, sorted, each pair once.
        secrets: Columns `secret`, `kind`, `value` (normalised) and `records` (how many hold it).
    """

    table: pl.DataFrame = field(repr=False)
    secrets: pl.DataFrame = field(repr=False)

    def over_their_caps(self, declared: SecretsSpec) -> dict[str, dict[str, int]]:
        """Counts, for each kind, the secrets in more records than declared; for the steward only.

        Returns:
            Kind -> `secrets`, `most_records` of one of them, and how many are `over_cap`.
        """
        summary = {}
        for kind in declared.kinds:
            held = self.secrets.filter(pl.col("kind") == kind.name)["records"]
            summary[kind.name] = {
                "secrets": len(held),
                "most_records": max(held.to_list(), default=0),
                "over_cap": int((held > kind.max_records).sum()),
            }
        return summary


def find_secrets(
    records: pl.DataFrame,
    declared: SecretsSpec,
    *,
    of_columns: Mapping[str, Mapping[str, set[str]]] | None = None,
    rare: Mapping[str, Sequence[str]] | None = None,
    progress: ShareCallback | None = None,
) -> SecretIncidence:
    """Runs every declared detector over the records.

    Args:
        records: Canonical records; columns `record_id` and `text` are read.
        declared: Kinds of secrets.
        of_columns: Kind -> record id -> values (`values_of_columns`).
        rare: Kind -> its rare words, where `records` are one shard of all; None to choose them
            here.
        progress: Called with the share of kinds and records done; reports nothing else.

    Raises:
        ValueError: If a detector cannot be opened.

    **Privacy** Private, as are the numbers of rows. Detection decides what can be checked and
    shown to the steward; the noise of `privacy.secret_clustering` does not depend on it.
    """
    texts, ids = records["text"].to_list(), records["record_id"].to_list()
    found: list[tuple[int, str, str]] = []
    for place, kind in enumerate(declared.kinds):
        share = _share_of_part(progress, place, len(declared.kinds))
        detector = detector_of(kind, texts, None if rare is None else rare.get(kind.name, ()))
        if detector is None:
            held = [sorted((of_columns or {}).get(kind.name, {}).get(one, ())) for one in ids]
        else:
            held = _search(detector, texts, share)
        for row, values in enumerate(held):
            found += [(row, kind.name, value) for value in _secrets_of(kind, values)]
    schema = {"record": pl.UInt32, "kind": pl.String, "value": pl.String}
    pairs = pl.DataFrame(found, schema=schema, orient="row")
    secrets = _numbered(pairs.group_by("kind", "value").agg(records=pl.len()))
    return SecretIncidence(table=_named(pairs, secrets), secrets=secrets)


def _search(detector: Detector, texts: Sequence[str], share: ShareCallback) -> list[list[str]]:
    held: list[list[str]] = []
    for start in range(0, len(texts), RECORDS_AT_A_TIME):
        block = texts[start : start + RECORDS_AT_A_TIME]
        held += [detector(text) for text in block]
        share(len(held) / len(texts))
    return held


def _secrets_of(kind: SecretKindSpec, values: Sequence[str]) -> set[str]:
    distinct = {normalised(value) for value in values} - {""}
    if kind.each == "kind":
        return {_ANY} if distinct else set()
    return distinct


def _numbered(counts: pl.DataFrame) -> pl.DataFrame:
    """Numbers secrets in the order of kind and value."""
    return counts.sort("kind", "value").select(
        pl.int_range(pl.len(), dtype=pl.UInt32).alias("secret"),
        "kind",
        "value",
        pl.col("records").cast(pl.UInt32),
    )


def _named(pairs: pl.DataFrame, secrets: pl.DataFrame) -> pl.DataFrame:
    """Rows of records with the numbers of the secrets that they hold."""
    joined = pairs.join(secrets.select("secret", "kind", "value"), on=["kind", "value"])
    return joined.select("record", "secret").sort("record", "secret")


def merged_dictionary(each: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Adds up the dictionaries of shards; secrets get the numbers they have in the whole.

    Args:
        each: `SecretIncidence.secrets` of every shard, no record in two of them.
    """
    total: pl.DataFrame | None = None
    for own in each:
        known = own.select("kind", "value", "records")
        joined = known if total is None else pl.concat([total, known])
        total = joined.group_by("kind", "value").agg(pl.col("records").sum())
    if total is None:
        raise ValueError("Expected at least one shard, got none.")
    return _numbered(total)


def renumbered(table: pl.DataFrame, own: pl.DataFrame, dictionary: pl.DataFrame) -> pl.DataFrame:
    """Gives the secrets of a shard's table their numbers in the dictionary of all shards."""
    pairs = table.join(own.select("secret", "kind", "value"), on="secret").drop("secret")
    return _named(pairs, dictionary)


def _share_of_part(progress: ShareCallback | None, place: int, parts: int) -> ShareCallback:
    """Reports the share of one of several equal shards as a share of the whole."""

    def report(share: float) -> None:
        if progress is not None:
            progress((place + share) / parts)

    return report
