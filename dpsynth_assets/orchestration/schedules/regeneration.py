"""Scheduled regeneration: new releases by name, or a skip that says why the budget refuses."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec, ScheduleSpec
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.orchestration.assets.keys import AUDIT, EVALUATION, dataset_key
from dpsynth_assets.orchestration.assets.launch import run_tags
from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.schedules.refusals import refusal_of
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE
from dpsynth_assets.report.budgets import rounds_left
from dpsynth_assets.tags import ROUNDS


def regeneration_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Job and schedule that regenerate a cohort's corpora, if the dataset file asks for them.

    Raises:
        ValueError: The schedule asks for rows, and none of its methods takes a number of rows.
    """
    if spec.schedule is None:
        return dg.Definitions()
    declared = spec.schedule
    chosen = [p for p in plan.methods if not declared.methods or p.folder in declared.methods]
    settings = row_settings(spec, chosen, declared)
    job = _regeneration_job(spec, chosen)
    paid = {f"{spec.name}/{p.folder}/{stage}" for p in chosen for stage in p.plan.charges}

    @declared_schedule(
        spec,
        declared,
        job,
        f"Regenerates {spec.name} while its budget allows; otherwise says why not. Declared "
        f"rounds: {spec.budget.rounds}. Each tick says how many are left.",
    )
    @public_section(f"The schedule of {spec.name}")
    def regenerate(
        context: dg.ScheduleEvaluationContext, ledger: PrivacyLedger
    ) -> dg.RunRequest | dg.SkipReason:
        tick, book = name_of_tick(context), ledger.open()
        left = rounds_in_words(book, spec, plan, [planned.folder for planned in chosen])
        context.log.info("Rounds of %s: %s.", spec.name, left)
        release = open_release(book, spec.account, paid)
        if release is None:
            release, refusal = tick, refusal_of(spec, plan, chosen, book, tick)
            if refusal is not None:
                return dg.SkipReason(f"{refusal} Rounds: {left}. {what_decides(spec)}")
        return dg.RunRequest(
            run_key=f"{spec.name}:{tick}",
            tags={**run_tags(spec.name, release, plan, paid), ROUNDS: left},
            run_config=settings,
        )

    return dg.Definitions(jobs=[job], schedules=[regenerate])


def declared_schedule(
    spec: PrivateDatasetSpec, declared: ScheduleSpec, job: Any, description: str
) -> Callable[[Callable[..., Any]], dg.ScheduleDefinition]:
    """The decorator of the schedule that a dataset file declares; a person switches it on."""
    return dg.schedule(
        name=f"regenerate_{spec.name}_schedule",
        job=job,
        cron_schedule=declared.cron,
        execution_timezone=declared.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=description,
    )


def name_of_tick(context: dg.ScheduleEvaluationContext) -> str:
    """The release that a tick asks for, by its time in UTC: each hour is there once."""
    return f"{context.scheduled_execution_time.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def open_release(ledger: Ledger, account: str, assets: Collection[str]) -> str | None:
    """Name of the oldest release that was charged and never finished; None where all are finished.

    A tick asks for it before it asks for a new one: a killed draw is paid for, and the run goes on
    from what it kept. One that still lives makes the run wait, which then uses its value.

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


def rounds_in_words(
    ledger: Ledger, spec: PrivateDatasetSpec, plan: DatasetPlan, methods: Sequence[str]
) -> str:
    """How many rounds of these methods the budget still holds, e.g. "9 of 12 left"."""
    left = rounds_left(ledger.account(spec.account), plan, spec.budget.rounds, methods)
    return "a round costs no ε" if left is None else f"{left} of {spec.budget.rounds} left"


def what_decides(spec: PrivateDatasetSpec) -> str:
    """The setting behind a refusal, for a reader who has to change it."""
    return (
        f"budget.rounds is {spec.budget.rounds}: ε is shared among so many rounds, and a schedule "
        "needs as many as it is to run, declared before the first release."
    )


def _regeneration_job(spec: PrivateDatasetSpec, chosen: Sequence[PlannedMethod]) -> Any:
    """The chosen methods from their paid stages on, with scores and statement."""
    folders = [*(planned.folder for planned in chosen), EVALUATION, AUDIT]
    return dg.define_asset_job(
        f"regenerate_{spec.name}",
        selection=dg.AssetSelection.key_prefixes(*([spec.name, folder] for folder in folders)),
        description=f"New corpora of {spec.name}: each is a new release and pays from the budget.",
        tags={"dagster/max_retries": "0"},
    )


def row_settings(
    spec: PrivateDatasetSpec, chosen: Sequence[PlannedMethod], declared: ScheduleSpec
) -> dict[str, Any]:
    """Run config that asks for the declared rows wherever rows are free; {} without any.

    Raises:
        ValueError: Rows are asked for, and every chosen method writes what its budget pays for.
    """
    if declared.rows is None:
        return {}
    writers = [
        dataset_key(spec.name, planned.folder, "candidate_corpus").to_python_identifier()
        for planned in chosen
        if planned.writing is not None
    ]
    if not writers:
        names = ", ".join(planned.folder for planned in chosen)
        raise ValueError(
            f"schedule.rows of {spec.name!r}: expected a method whose rows cost nothing, got "
            f"{names}, whose rows follow from the budget. Drop rows, or name another method."
        )
    return {"ops": {name: {"config": {"rows": declared.rows}} for name in writers}}
