"""The schedule of a dataset: a new release of its corpora, or why the budget refuses one.

Where the dataset declares cohorts, a tick registers what is complete and asks for the newest cohort
alone: for its first run where it was never charged, else for a new release. Older cohorts stay as
they are; the sensor for new cohorts, a backfill or a person asks for those.
"""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import CohortSpec, PrivateDatasetSpec, ScheduleSpec, usable_cohorts
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import (
    AUDIT,
    EVALUATION,
    dataset_key,
    public_group,
    register_partitions,
)
from dpsynth_assets.orchestration.assets.launch import refusal_of, run_tags
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE
from dpsynth_assets.report.budgets import rounds_left
from dpsynth_assets.tags import DEFAULT_RELEASE, ROUNDS

# New files and new time windows become cohorts: registered, shown as partitions, released once.
#
# A tick registers what the calendar or the folder says is complete, adds the partition that it is
# to the dataset's assets, and asks for the first run of cohorts that were never charged. Nothing
# has to be loaded again. Where the public base they build on was never made, it is asked for first,
# once for all of them.
#
# **Privacy** Which cohorts exist is read from the calendar or from names of files, never from
# records; an empty window is released like any other. Each cohort pays from an account of its own,
# and since every record is in one of them they compose in parallel.

FIRST_RUNS_A_TICK = 5
"""A dataset that begins with years of windows is worked off little by little."""

SECONDS_BETWEEN_TICKS = 300


def new_cohort_definitions(
    spec: PrivateDatasetSpec, assets: Sequence[dg.AssetKey]
) -> dg.Definitions:
    """The sensor of one partitioned dataset.

    Args:
        spec: The declaration, with `cohorts`.
        assets: Keys of the dataset's assets.

    Raises:
        ValueError: The declaration is not partitioned.
    """
    if spec.cohorts is None:
        raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
    base = dg.AssetSelection.groups(public_group(spec.public_data))

    @dg.sensor(
        name=f"{spec.name}_new_cohorts",
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"Registers new cohorts of {spec.name} and requests the first run of each, after that "
            "of the public base; every cohort pays from its own budget."
        ),
        target=dg.AssetSelection.assets(*assets) | base,
    )
    @public_section(f"New cohorts of {spec.name}")
    def new_cohorts(context: dg.SensorEvaluationContext, ledger: PrivacyLedger) -> dg.SensorResult:
        register_partitions(context.instance, spec)
        asked = set(json.loads(context.cursor or "[]"))
        book = ledger.open()
        candidates = _never_charged(spec, asked, book)
        base = _public_behind(context, assets) if candidates else []
        made = context.instance.get_latest_materialization_event
        if missing := [key for key in base if made(key) is None]:
            return _base_first(context, spec, base, missing)
        chosen, refused = _admitted(candidates, book)
        requests = [first_run(cohort, assets) for cohort in chosen]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _nothing_to_do(spec.name, refused),
            cursor=json.dumps(sorted(asked.union(cohort.part.key for cohort in chosen))),
        )

    return dg.Definitions(sensors=[new_cohorts])


def first_run(cohort: CohortSpec, assets: Sequence[dg.AssetKey]) -> dg.RunRequest:
    """Asks for everything of one cohort.

    Args:
        cohort: The cohort; its partition is there.
        assets: Keys of all assets of its dataset.
    """
    plan = plan_dataset(cohort)
    return dg.RunRequest(
        run_key=f"{cohort.name}:first",
        asset_selection=list(assets),
        partition_key=cohort.part.key,
        tags=run_tags(cohort.name, "", plan, {each.asset for each in plan.releases}),
    )


def _never_charged(spec: PrivateDatasetSpec, asked: set[str], book: Ledger) -> list[CohortSpec]:
    """The cohorts that were never requested and that hold no charge, in order."""
    cohorts = (CohortSpec.of(spec, key) for key in usable_cohorts(spec) if key not in asked)
    return [cohort for cohort in cohorts if book.account(cohort.account) is None]


def _admitted(candidates: Sequence[CohortSpec], book: Ledger) -> tuple[list[CohortSpec], list[str]]:
    """As many cohorts as a tick asks for, and why others may not be released."""
    chosen: list[CohortSpec] = []
    refused: list[str] = []
    for cohort in candidates:
        if len(chosen) == FIRST_RUNS_A_TICK:
            break
        plan = plan_dataset(cohort)
        refusal = refusal_of(cohort, plan, plan.parts, book, DEFAULT_RELEASE)
        if refusal is None:
            chosen.append(cohort)
        else:
            refused.append(refusal)
    return chosen, refused


def _public_behind(
    context: dg.SensorEvaluationContext, keys: Sequence[dg.AssetKey]
) -> list[dg.AssetKey]:
    """Public assets that the cohorts build on; in order."""
    if context.repository_def is None:
        return []
    graph = context.repository_def.asset_graph
    own = set(keys)
    behind = {above for key in keys for above in graph.get_ancestor_asset_keys(key)} - own
    return [key for key in sorted(behind) if graph.get(key).is_materializable]


def _base_first(
    context: dg.SensorEvaluationContext,
    spec: PrivateDatasetSpec,
    base: Sequence[dg.AssetKey],
    missing: Sequence[dg.AssetKey],
) -> dg.SensorResult:
    """Asks for the public base, once for each set of assets it is to hold; cohorts wait for it."""
    names = ",".join(key.to_user_string() for key in base)
    run_key = f"{spec.public_data}:base:{hashlib.sha256(names.encode()).hexdigest()[:16]}"
    context.log.info(
        "%d assets of the public base %s are made first, in the run %s; nothing is charged. If "
        "that run failed, materialise the group %s by hand.",
        len(missing),
        spec.public_data,
        run_key,
        public_group(spec.public_data),
    )
    request = dg.RunRequest(run_key=run_key, asset_selection=list(missing))
    return dg.SensorResult(run_requests=[request], cursor=context.cursor)


def _nothing_to_do(dataset: str, refused: Sequence[str]) -> str:
    if refused:
        return f"{len(refused)} cohorts are refused: {refused[0]}"
    return f"No new cohort of {dataset}: the next window has not ended, or there is no new file."


def schedule_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, assets: Sequence[dg.AssetKey]
) -> dg.Definitions:
    """Job and schedule that regenerate a dataset's corpora, if its file asks for them.

    Args:
        spec: The declaration.
        plan: Its plan, which is that of each cohort but for names.
        assets: Keys of the dataset's assets.

    Raises:
        ValueError: The schedule asks for rows, and none of its methods takes a number of rows.
    """
    if spec.schedule is None:
        return dg.Definitions()
    declared, by_cohort = spec.schedule, spec.cohorts is not None
    folders = [
        p.folder for p in plan.methods if not declared.methods or p.folder in declared.methods
    ]
    settings = _row_settings(spec, _chosen(plan, folders), declared)
    job = dg.define_asset_job(
        f"regenerate_{spec.name}",
        selection=dg.AssetSelection.assets(
            *(assets if by_cohort else _regenerated(assets, folders))
        ),
        description=f"The newest complete cohort of {spec.name}: it pays from its own budget."
        if by_cohort
        else f"New corpora of {spec.name}: each is a new release and pays from the budget.",
        tags={"dagster/max_retries": "0"},
    )

    @dg.schedule(
        name=f"regenerate_{spec.name}_schedule",
        job=job,
        cron_schedule=declared.cron,
        execution_timezone=declared.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Materialises the newest complete cohort of {spec.name}; if it was released "
        "before, regenerates it while its budget allows, and otherwise says why not."
        if by_cohort
        else f"Regenerates {spec.name} while its budget allows; otherwise says why not. Declared "
        f"rounds: {spec.budget.rounds}. Each tick says how many are left.",
    )
    @public_section(f"The schedule of {spec.name}")
    def regenerate(
        context: dg.ScheduleEvaluationContext, ledger: PrivacyLedger
    ) -> dg.RunRequest | dg.SkipReason:
        asked = spec
        if by_cohort:
            register_partitions(context.instance, spec)
            if not (keys := usable_cohorts(spec)):
                return dg.SkipReason(f"No cohort of {spec.name} is complete yet.")
            asked = CohortSpec.of(spec, keys[-1])
        # The release of a tick is named by its time in UTC: each hour is there once.
        name = f"{context.scheduled_execution_time.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
        tick = _Tick(
            asked, plan_dataset(asked) if by_cohort else plan, folders, ledger.open(), name
        )
        context.log.info("Rounds of %s: %s.", asked.name, tick.rounds)
        return tick.asked(assets, settings)

    return dg.Definitions(jobs=[job], schedules=[regenerate])


def _chosen(plan: DatasetPlan, folders: Sequence[str]) -> list[PlannedMethod]:
    return [planned for planned in plan.methods if planned.folder in folders]


def _regenerated(assets: Sequence[dg.AssetKey], folders: Sequence[str]) -> list[dg.AssetKey]:
    """The chosen methods from their paid stages on, with scores and statement."""
    return [key for key in assets if key.path[1] in {*folders, EVALUATION, AUDIT}]


@dataclass(frozen=True)
class _Tick:
    """A dataset, or its newest cohort, at one tick.

    Attributes:
        spec: The dataset or the cohort.
        plan: Its plan.
        folders: Methods that the schedule regenerates.
        book: What was charged so far.
        name: The release that the tick asks for.
    """

    spec: PrivateDatasetSpec
    plan: DatasetPlan
    folders: Sequence[str]
    book: Ledger
    name: str

    @property
    def rounds(self) -> str:
        """How many rounds of the methods the budget still holds, e.g. "9 of 12 left"."""
        account, rounds = self.book.account(self.spec.account), self.spec.budget.rounds
        left = rounds_left(account, self.plan, rounds, self.folders)
        return "a round costs no ε" if left is None else f"{left} of {rounds} left"

    def asked(
        self, assets: Sequence[dg.AssetKey], settings: dict[str, Any]
    ) -> dg.RunRequest | dg.SkipReason:
        """What the tick asks for: an open release, the first, or a new one; or why nothing."""
        spec, plan, book, rounds = self.spec, self.plan, self.book, self.rounds
        cohort = spec if isinstance(spec, CohortSpec) else None
        chosen = _chosen(plan, self.folders)
        paid = {f"{spec.name}/{p.folder}/{stage}" for p in chosen for stage in p.plan.charges}
        all_paid = {each.asset for each in plan.releases}
        release = open_release(book, spec.account, paid if cohort is None else all_paid)
        never_charged = release == DEFAULT_RELEASE or book.account(spec.account) is None
        if release is None:
            first = cohort is not None and never_charged
            parts, name = (plan.parts, DEFAULT_RELEASE) if first else (chosen, self.name)
            refusal = refusal_of(spec, plan, parts, book, name)
            if refusal is not None:
                return dg.SkipReason(_told(spec, refusal, rounds))
        if cohort is not None and never_charged:
            request = first_run(cohort, assets)
            return request.with_replaced_attrs(
                run_key=f"{request.run_key}:{self.name}" if release else request.run_key,
                tags={**request.tags, ROUNDS: rounds},
                run_config=settings,
            )
        return dg.RunRequest(
            run_key=f"{spec.name}:{self.name}",
            asset_selection=None if cohort is None else _regenerated(assets, self.folders),
            partition_key=None if cohort is None else cohort.part.key,
            tags={**run_tags(spec.name, release or self.name, plan, paid), ROUNDS: rounds},
            run_config=settings,
        )


def _told(spec: PrivateDatasetSpec, refusal: str, rounds: str) -> str:
    """A refusal with the setting behind it, for a reader who has to change it."""
    named = f"{spec.name}: {refusal}" if isinstance(spec, CohortSpec) else refusal
    return (
        f"{named} Rounds: {rounds}. budget.rounds is {spec.budget.rounds}: ε is shared among "
        "these rounds. A schedule needs one for each of its runs, declared before the first "
        "release."
    )


def open_release(ledger: Ledger, account: str, assets: Collection[str]) -> str | None:
    """Name of the oldest release that was charged and never finished; None where all are finished.

    A tick asks for it before it asks for a new one: a killed draw is paid for, and the run
    continues from what it kept. One that still lives makes the run wait, which then uses its value.

    Args:
        ledger: What was charged so far.
        account: Account of the cohort.
        assets: Keys of the paid assets that a tick would make.
    """
    last: dict[tuple[str, str], LedgerEntry] = {}
    for entry in ledger.stream(account):
        if entry.kind in (RESERVE, COMMIT) and entry.asset in assets:
            last[entry.asset, entry.release] = entry
    waiting = [entry for entry in last.values() if entry.kind == RESERVE]
    return min(waiting, key=lambda entry: entry.seq).release if waiting else None


def _row_settings(
    spec: PrivateDatasetSpec, chosen: Sequence[PlannedMethod], declared: ScheduleSpec
) -> dict[str, Any]:
    """Run config that asks for the declared rows wherever rows are free; {} without any."""
    if declared.rows is None:
        return {}
    keys = [
        dataset_key(spec.name, planned.folder, "candidate_corpus")
        for planned in chosen
        if planned.writing is not None
    ]
    rows = {"config": {"rows": declared.rows}}
    return {"ops": {key.to_python_identifier(): rows for key in keys}}
