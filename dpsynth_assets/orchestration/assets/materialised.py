"""Claims of the materialisations that Dagster's event log holds, as the audit compares them."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dagster as dg

from dpsynth_assets.orchestration.assets.partitions import cohort_of_event
from dpsynth_assets.report.audit_agreement import Materialised

FILES = "dpsynth/files"
"""Metadata of a materialisation that wrote released files: path and SHA-256 of each."""

SHOWN_DIGITS = 12
_MAY_BREAK = "\u200b"
"""Of no width: a path that is longer than its column goes on in the next line."""
_DIGEST = r"\[[0-9a-f]+\]\(#([0-9a-f]+)\)"
_FILE = re.compile(rf"^(.+): {_DIGEST}$", re.MULTILINE)


def short_digest(digest: str) -> dg.MarkdownMetadataValue:
    """A digest as its first digits, a link that leads nowhere and has the whole as its address."""
    return dg.MetadataValue.md(_shown(digest))


def shown_files(digests: Mapping[str, str]) -> dict[str, Any]:
    """Metadata of files that were written, path -> SHA-256, as `materialised` reads it again."""
    lines = [f"{path}: {_shown(digest)}" for path, digest in digests.items()]
    return {FILES: dg.MetadataValue.md("\n\n".join(lines).replace("/", f"/{_MAY_BREAK}"))}


def _shown(digest: str) -> str:
    return f"[{digest[:SHOWN_DIGITS]}](#{digest})"


_PAGE = 200


def materialised(instance: dg.DagsterInstance, cohorts: Collection[str]) -> Iterator[Materialised]:
    """Every materialisation of some cohorts' assets that the event log still holds.

    A cohort's materialisations are those of its own assets, or those of its partition.
    """
    for key in sorted(instance.all_asset_keys()):
        if key.path[0] in cohorts:
            yield from _all_of(instance, dg.AssetRecordsFilter(asset_key=key), cohorts)
        start = f"{key.path[0]}_"
        partitions = [name.removeprefix(start) for name in cohorts if name.startswith(start)]
        if partitions:
            asked = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
            yield from _all_of(instance, asked, cohorts)


def _all_of(
    instance: dg.DagsterInstance, asked: dg.AssetRecordsFilter, cohorts: Collection[str]
) -> Iterator[Materialised]:
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(asked, limit=_PAGE, cursor=cursor)
        for record in page.records:
            key = record.asset_key
            if key is not None and cohort_of_event(key, record.partition_key) in cohorts:
                yield _claims(key, record)
        if not page.has_more:
            return
        cursor = page.cursor


def _claims(key: dg.AssetKey, record: dg.EventLogRecord) -> Materialised:
    written = record.asset_materialization
    metadata = {} if written is None else written.metadata
    values = {name: value.value for name, value in metadata.items()}
    epsilon = values.get("dpsynth/epsilon")
    return Materialised(
        asset="/".join([cohort_of_event(key, record.partition_key), *key.path[1:]]),
        run_id=record.run_id,
        storage_id=record.storage_id,
        reservation=_text(values.get("dpsynth/ledger_reservation")),
        event=_object(values.get("dpsynth/accounting_event")),
        # A corpus shows the guarantee of all it builds on; a spending asset that of its charge.
        guarantee=_text(values.get("dpsynth/guarantee")) if "dpsynth/reused" in values else None,
        epsilon=float(epsilon) if isinstance(epsilon, int | float) else None,
        ledger_head=_digest(values.get("dpsynth/ledger_head")),
        ledger_entries=_number(values.get("dpsynth/ledger_entries")),
        files=_files(values.get(FILES)),
    )


def _digest(value: Any) -> str | None:
    """A digest that is shown short, or whole as earlier versions wrote it."""
    found = re.fullmatch(_DIGEST, value) if isinstance(value, str) else None
    return found[1] if found else _text(value)


def _files(value: Any) -> dict[str, Any]:
    """Digests of files as they are shown, or in the JSON of earlier versions."""
    if isinstance(value, str):
        return dict(_FILE.findall(value.replace(_MAY_BREAK, "")))
    return _object(value) or {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
