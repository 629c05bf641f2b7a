"""The audit trail as an asset: compares Dagster's event log with the ledger."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec, cohort_name
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.keys import (
    AGREES,
    AUDIT,
    AUDIT_TRAIL,
    asset_of_cohort,
    cohort_asset,
    dataset_key,
)
from dpsynth_assets.orchestration.assets.privacy_budgets import report_budgets_or_problem
from dpsynth_assets.orchestration.metadata import check_specs, compared, short_digest
from dpsynth_assets.orchestration.resources.check_results import report_check
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.schema import ACTS
from dpsynth_assets.releases.store import StoreUnavailableError
from dpsynth_assets.report.audit_page import LEVELS, audit_page, spend_table
from dpsynth_assets.report.audit_trail import (
    CHAIN,
    FILE,
    NOT_RECORDED,
    RELEASED_STATE,
    STORE,
    AuditTrail,
    Finding,
    Materialised,
    Spend,
    act_in_words,
    entries_of,
    file_digests,
    file_findings,
    file_lineage,
    spends_of,
    to_csv,
    to_json,
    unaccounted,
    unmaterialised,
)
from dpsynth_assets.report.pages import page_address
from dpsynth_assets.tags import INTERNAL, LAUNCHED_BY

_EXPECTED = "ledger, event log, stored releases and released files agree in both directions"


def audit_trail(
    cohort: str, ledger: Ledger, store: ReleaseStore, instance: dg.DagsterInstance
) -> AuditTrail:
    """Reads ledger, event log, stored releases and released files of one cohort, and compares them.

    Args:
        cohort: Name of a dataset, or of one cohort of it.
        ledger: Where spends are.
        store: Where releases are.
        instance: Whose event log is compared.
    """
    everything = ledger.entries()
    entries = entries_of(everything, cohort)
    names = {cohort, *(entry.cohort for entry in entries)}
    names |= {entry.asset.partition("/")[0] for entry in entries}
    spends = spends_of(ledger, entries)
    asked_by = launchers(instance, sorted({spend.run_id for spend in spends if spend.run_id}))
    spends = tuple(
        replace(spend, launched_by=asked_by.get(spend.run_id, NOT_RECORDED)) for spend in spends
    )
    events = list(materialised(instance, names))
    files = file_lineage(home().released, sorted(names), everything, events)
    chain = ledger.verify()
    findings = [
        *(Finding(kind=CHAIN, subject=f"entry {p.seq}", message=str(p)) for p in chain.problems),
        *unmaterialised(spends, events),
        *unaccounted(everything, spends, events),
        *_altered(store, spends),
        *file_findings(files),
        *_rewritten(store, spends, events),
    ]
    return AuditTrail(
        cohort=cohort,
        ledger_entries=chain.entries,
        ledger_head=chain.head,
        spends=spends,
        files=files,
        acts=tuple(
            act_in_words(each)
            for each in everything
            if each.kind in ACTS and each.cohort in ("", *names)
        ),
        findings=tuple(findings),
    )


def _altered(store: ReleaseStore, spends: tuple[Spend, ...]) -> Iterator[Finding]:
    """Stored releases that are gone, or not what the ledger sealed."""
    for spend in spends:
        if spend.state != RELEASED_STATE:
            continue
        there = store.has(spend.reservation)
        if there and store.digest(spend.reservation) == spend.artifact_digest:
            continue
        message = (
            f"Expected the stored release that ledger entry {spend.seq} sealed, got "
            f"{'other files' if there else 'nothing'}. Restore it from a backup."
        )
        yield Finding(kind=STORE, subject=spend.asset, message=message)


def _rewritten(
    store: ReleaseStore, spends: tuple[Spend, ...], events: list[Materialised]
) -> Iterator[Finding]:
    """Published corpora whose texts are not those of the release that was paid for.

    This leads from the rows to the ledger without the event log, which could be forged.
    """
    paid = {spend.reservation for spend in spends if spend.state == RELEASED_STATE}
    latest = {event.asset: event for event in sorted(events, key=lambda e: e.storage_id)}
    for event in latest.values():
        if event.reservation is None or event.reservation not in paid:
            continue
        for name in event.files:
            if name.endswith(".parquet") and store.has(event.reservation):
                message = _rows_problem(store, event.reservation, home().released / name)
                if message is not None:
                    yield Finding(kind=FILE, subject=name, message=message)


def _rows_problem(store: ReleaseStore, reservation: str, path: Path) -> str | None:
    import polars as pl

    if not path.exists():
        return "Expected the published rows, got no file. Publish again, which is free."
    try:
        _, sealed = store.load(reservation)
        same = sealed is not None and sealed["text"].equals(pl.read_parquet(path)["text"])
    except (StoreUnavailableError, pl.exceptions.PolarsError, OSError):
        same = False
    return None if same else "Expected the texts of the stored release, got other rows."


def audited_cohorts(instance: dg.DagsterInstance) -> list[str]:
    """Cohorts whose audit trail was ever made, by name."""
    last, found = (AUDIT, AUDIT_TRAIL), set()
    for key in instance.all_asset_keys():
        if tuple(key.path[1:]) == last:
            partitions = instance.get_materialized_partitions(key)
            found |= {cohort_name(key.path[0], each) for each in partitions or (None,)}
    return sorted(found)


def report_agreement(
    cohort: str, ledger: Ledger, store: ReleaseStore, instance: dg.DagsterInstance
) -> AuditTrail:
    """Audits a cohort now, and shows the result as the check of its audit trail.

    Args:
        cohort: Name of a dataset.
        ledger: Where spends are.
        store: Where releases are.
        instance: Whose event log is compared, and learns the result.

    **Privacy** Compares released and public values: post-processing. Launches no run.
    """
    trail = audit_trail(cohort, ledger, store, instance)
    _report(cohort, trail.agrees, _lines(trail), instance)
    return trail


def report_no_audit(cohort: str, reason: str, instance: dg.DagsterInstance) -> None:
    """Shows that a cohort could not be audited: until it can be, its check does not hold.

    Args:
        cohort: Name of a dataset.
        reason: Why, without private values.
        instance: Learns the result.
    """
    _report(cohort, False, [f"not audited: {cohort}: {reason}"], instance)


def _report(cohort: str, passed: bool, lines: list[str], instance: dg.DagsterInstance) -> None:
    key, partition = asset_of_cohort(cohort, AUDIT, AUDIT_TRAIL)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=key, check_name=AGREES, passed=passed, metadata=_shown(lines), partition=partition
    )
    report_check(instance, evaluation)


def _shown(lines: list[str]) -> dict[str, Any]:
    return {**compared(_EXPECTED, lines), "findings": dg.MetadataValue.json(lines)}


def _lines(trail: AuditTrail) -> list[str]:
    return [f"{f.kind}: {f.subject}: {f.message}" for f in trail.findings]


def write_trail(trail: AuditTrail) -> Path:
    """Writes the trail as CSV, JSON and HTML for its owner; returns the folder."""
    folder = home().reports / trail.cohort
    for suffix, content in (
        ("csv", to_csv(trail)),
        ("json", to_json(trail)),
        ("html", audit_page(trail)),
    ):
        write_whole(folder / f"{AUDIT_TRAIL}.{suffix}", content)
    return folder


def audit_trail_definitions(
    spec: PrivateDatasetSpec, upstream: list[dg.AssetKey]
) -> dg.Definitions:
    """The audit trail of a dataset, with the check that ledger and event log agree.

    Args:
        spec: The dataset.
        upstream: What has to be there first: its statement and its corpora.
    """
    key = dataset_key(spec.name, AUDIT, AUDIT_TRAIL)

    @dg.asset(
        **cohort_asset(
            spec,
            AUDIT,
            AUDIT_TRAIL,
            INTERNAL,
            "dpsynth_assets.report.audit_trail.AuditTrail",
            "dpsynth_assets.report.audit_trail.unaccounted",
        ),
        deps=upstream,
        kinds={"html"},
        check_specs=check_specs(key, {AGREES: f"{_EXPECTED.capitalize()}."}),
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("audit trail", 2),
        description=(
            "Every spend with run, parameters, versions, guarantee, cumulative and remaining ε; "
            "every released file followed back to its charges; CSV, JSON and HTML. Costs "
            "nothing. `dpsynth/spend_table` lists, for each release: its own ε, the ε it added, "
            f"its run, who launched it, who may read it, and the releases it builds on. {LEVELS}"
        ),
    )
    @public_section(f"The audit trail of {spec.name}")
    def audit_trail_of_cohort(
        context: dg.AssetExecutionContext, ledger: PrivacyLedger, release_store: ReleaseStore
    ) -> dg.MaterializeResult:
        book = ledger.open()
        trail = audit_trail(spec.name, book, release_store, context.instance)
        write_trail(trail)
        audited = {spec.name: len(trail.findings)}
        if problem := report_budgets_or_problem(ledger.open, context.instance, audited):
            context.log.error(problem)
        return dg.MaterializeResult(
            metadata={
                "dpsynth/spend_table": dg.MetadataValue.md(spend_table(trail)),
                "dpsynth/page": dg.MetadataValue.url(
                    page_address("reports", spec.name, f"{AUDIT_TRAIL}.html")
                ),
                "dpsynth/spends": len(trail.spends),
                "dpsynth/released_files": len(trail.files),
                "dpsynth/disagreements": len(trail.findings),
                "dpsynth/ledger_head": short_digest(trail.ledger_head),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name=AGREES, passed=trail.agrees, metadata=_shown(_lines(trail))
                )
            ],
        )

    return dg.Definitions(assets=[audit_trail_of_cohort])


_BY_TAG = (
    (LAUNCHED_BY, "{}"),
    ("user", "{}"),
    ("dagster/schedule_name", "schedule {}"),
    ("dagster/sensor_name", "sensor {}"),
    ("dagster/backfill", "backfill {}"),
    ("dagster/parent_run_id", "run again after {}"),
)
"""Tags that name who launched a run, most telling first; Dagster+ sets `user`."""


def launched_by(tags: Mapping[str, str]) -> str:
    """Names the person, schedule or sensor that asked for a run.

    Args:
        tags: Tags of the run.

    Returns:
        A name, or that the web server, which asks for no name, or another program launched it.
    """
    for tag, form in _BY_TAG:
        if tags.get(tag):
            return form.format(tags[tag])
    return f"web UI or API, person {NOT_RECORDED}"


def launchers(instance: dg.DagsterInstance, run_ids: list[str]) -> dict[str, str]:
    """Run -> who launched it, of those of these runs that Dagster still holds."""
    if not run_ids:
        return {}
    runs = instance.get_runs(filters=dg.RunsFilter(run_ids=run_ids))
    return {run.run_id: launched_by(run.tags) for run in runs}


# Claims of the materialisations that Dagster's event log holds, as the audit compares them.


FILES = "dpsynth/files"
"""Metadata of a materialisation that wrote released files: path and SHA-256 of each."""

_MAY_BREAK = "\u200b"
"""Of no width: a path that is longer than its column goes on in the next line."""
_DIGEST = r"\[[0-9a-f]+\]\(#([0-9a-f]+)\)"
_FILE = re.compile(rf"^(.+): {_DIGEST}$", re.MULTILINE)
_PAGE = 200


def written_files(*paths: Path) -> dict[str, Any]:
    """Metadata that lets an auditor follow released files back to this materialisation.

    Args:
        paths: Files, or folders with everything in them.
    """
    digests: dict[str, str] = {}
    for path in paths:
        digests |= file_digests(path, home().released)
    lines = [f"{path}: {short_digest(digest).md_str}" for path, digest in digests.items()]
    return {FILES: dg.MetadataValue.md("\n\n".join(lines).replace("/", f"/{_MAY_BREAK}"))}


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
            if key is not None and cohort_name(key.path[0], record.partition_key) in cohorts:
                yield _claims(key, record)
        if not page.has_more:
            return
        cursor = page.cursor


def _claims(key: dg.AssetKey, record: dg.EventLogRecord) -> Materialised:
    """What a materialisation says; anyone may report one, so a value of another type is none."""
    written = record.asset_materialization
    metadata = {} if written is None else written.metadata
    values = {name.removeprefix("dpsynth/"): value.value for name, value in metadata.items()}

    def said(name: str, *kinds: type) -> Any:
        return value if isinstance(value := values.get(name), kinds) else None

    epsilon, head = said("epsilon", int, float), said("ledger_head", str)
    shortened = re.fullmatch(_DIGEST, head or "")
    return Materialised(
        asset="/".join([cohort_name(key.path[0], record.partition_key), *key.path[1:]]),
        run_id=record.run_id,
        storage_id=record.storage_id,
        reservation=said("ledger_reservation", str),
        event=said("accounting_event", dict),
        # A corpus shows the guarantee of all it builds on; a spending asset that of its charge.
        guarantee=said("guarantee", str) if "reused" in values else None,
        epsilon=None if epsilon is None else float(epsilon),
        ledger_head=shortened[1] if shortened else head,
        ledger_entries=said("ledger_entries", int),
        files=dict(_FILE.findall((said("files", str) or "").replace(_MAY_BREAK, ""))),
    )
