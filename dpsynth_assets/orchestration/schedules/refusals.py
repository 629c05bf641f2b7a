"""Asks whether the ledger would admit a whole round of releases, before a run is started.

What it says is for people: the ledger asks again, under its lock, before anything private is read.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod, PlannedShared
from dpsynth_assets.methods.requests import stage_request
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.ledger import Ledger, ReleaseRequest
from dpsynth_assets.privacy.ledger.schema import ZCDP


def refusal_of(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    chosen: Sequence[PlannedMethod | PlannedShared],
    ledger: Ledger,
    release: str,
) -> str | None:
    """Gives the reason why the chosen parts may not be released again; None if all may.

    The whole round is asked for at once: two releases that fit one by one may not fit together.
    """
    for planned in chosen:
        if planned.plan.refusal is not None:
            return f"{planned.folder}: {planned.plan.refusal}"
    requests = [r for planned in chosen for r in _requests(spec, planned, release)]
    return _first_refusal(spec, plan, requests, ledger)


def first_run_refusal(spec: PrivateDatasetSpec, plan: DatasetPlan, ledger: Ledger) -> str | None:
    """Gives the reason why a cohort may not be released first, shared histograms included."""
    return refusal_of(spec, plan, plan.parts, ledger, "1")


def pending_refusal(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    assets: Collection[str],
    release: str,
    ledger: Ledger,
) -> str | None:
    """Gives the reason why a run may not pay for these assets, all together; None if it may.

    Args:
        spec: The cohort.
        plan: Prices of its releases.
        assets: Keys of the paid assets that the run would be charged for.
        release: Name of the release.
        ledger: What was charged so far.
    """
    asked = [each for part in plan.parts for each in _requests(spec, part, release)]
    return _first_refusal(spec, plan, [each for each in asked if each.asset in assets], ledger)


def _first_refusal(
    spec: PrivateDatasetSpec, plan: DatasetPlan, requests: list[ReleaseRequest], ledger: Ledger
) -> str | None:
    try:
        for request in _joint_requests(spec, requests):
            admission = ledger.preview(request, plan.budget, plan.releases)
            if not admission.admitted:
                return admission.refusal
    except PrivacyError as refusal:
        return str(refusal)
    return None


def _requests(
    spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared, release: str
) -> list[ReleaseRequest]:
    """Asks for what one method, or shared histogram, would charge, stage by stage."""
    paid = (stage for stage in planned.plan.stages if stage.mechanism is not None)
    return [stage_request(spec, planned, stage, release=release) for stage in paid]


def _joint_requests(
    spec: PrivateDatasetSpec, requests: list[ReleaseRequest]
) -> list[ReleaseRequest]:
    """Builds the request that stands for the whole round when the ledger is asked.

    A fixed plan is charged by whole rounds, so each request already stands for all. An adaptive
    budget adds up, so the round is asked for as one composed release.
    """
    events = [request.event for request in requests if request.event is not None]
    if spec.budget.accountant != ZCDP or not events:
        return requests
    joint = next(request for request in requests if request.event is not None)
    ex_post = [request for request in requests if request.event is None]
    return [replace(joint, event=ComposedEvent(events=tuple(events))), *ex_post]
