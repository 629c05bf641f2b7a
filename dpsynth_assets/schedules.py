"""Scheduled regeneration: new releases by name, or a skip that says why the budget refuses."""

from dataclasses import replace

import dagster as dg

from dpsynth_assets.assets.corpora import corpus_request
from dpsynth_assets.assets.evaluation import EVALUATION
from dpsynth_assets.assets.staged import stage_request
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planning import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.staged import StagedMethod
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.tags import RELEASE


def regeneration_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Job and schedule that regenerate a cohort's corpora, if the dataset file asks for them."""
    if spec.schedule is None:
        return dg.Definitions()
    chosen = [
        planned
        for planned in plan.methods
        if not spec.schedule.methods or planned.folder in spec.schedule.methods
    ]
    groups = [f"{spec.name}/{planned.folder}" for planned in chosen]
    job = dg.define_asset_job(
        f"regenerate_{spec.name}",
        selection=dg.AssetSelection.groups(*groups, f"{spec.name}/{EVALUATION}")
        | dg.AssetSelection.groups(f"{spec.name}/audit"),
        description=f"New corpora of {spec.name}: each is a new release and pays from the budget.",
        tags={"dagster/max_retries": "0"},
    )

    @dg.schedule(
        name=f"regenerate_{spec.name}_schedule",
        job=job,
        cron_schedule=spec.schedule.cron,
        execution_timezone=spec.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Regenerates {spec.name} while its budget allows; otherwise says why not.",
    )
    def regenerate(
        context: dg.ScheduleEvaluationContext, ledger: PrivacyLedger
    ) -> dg.RunRequest | dg.SkipReason:
        release = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        refusal = refusal_of(spec, plan, chosen, ledger.open(), release)
        if refusal is not None:
            return dg.SkipReason(refusal)
        return dg.RunRequest(run_key=f"{spec.name}:{release}", tags={RELEASE: release})

    return dg.Definitions(jobs=[job], schedules=[regenerate])


def refusal_of(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    chosen: list[PlannedMethod],
    ledger: Ledger,
    release: str,
) -> str | None:
    """Why the chosen methods may not be released once more; None if all of them may.

    The whole round is asked for at once: two releases that fit one by one may not fit together.
    """
    for planned in chosen:
        if planned.plan.refusal is not None:
            return f"{planned.folder}: {planned.plan.refusal}"
    try:
        for request in _joint_requests(spec, chosen, release):
            admission = ledger.preview(request, plan.budget, plan.releases)
            if not admission.admitted:
                return admission.refusal
    except PrivacyError as refusal:
        return str(refusal)
    return None


def _requests(
    spec: PrivateDatasetSpec, planned: PlannedMethod, release: str
) -> list[ReleaseRequest]:
    """What one method would charge: each of its stages, or its corpus."""
    if not isinstance(planned.method, StagedMethod):
        return [corpus_request(spec, planned, release=release)]
    return [stage_request(spec, planned, name, release=release) for name in planned.plan.stages]


def _joint_requests(
    spec: PrivateDatasetSpec, chosen: list[PlannedMethod], release: str
) -> list[ReleaseRequest]:
    """What stands for the whole round when asked of the ledger.

    A fixed plan is charged by whole rounds, so each request already stands for all. An adaptive
    budget adds up, so the round is asked for as one composed release.
    """
    requests = [r for planned in chosen for r in _requests(spec, planned, release)]
    events = [request.event for request in requests if request.event is not None]
    if spec.budget.accountant == "tight" or not events:
        return requests
    joint = next(request for request in requests if request.event is not None)
    ex_post = [request for request in requests if request.event is None]
    return [replace(joint, event=ComposedEvent(events=tuple(events))), *ex_post]
