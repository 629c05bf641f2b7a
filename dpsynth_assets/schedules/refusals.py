"""Whether the ledger would admit a whole round of releases, asked before a run is started.

What it says is for people: the ledger asks again, under its lock, before anything private is read.
"""

from collections.abc import Sequence
from dataclasses import replace

from dpsynth_assets.assets.corpora import corpus_request
from dpsynth_assets.assets.dataset import SHARED
from dpsynth_assets.assets.staged_requests import stage_request
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.staged import StagedMethod
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger, PlannedRelease, ReleaseRequest
from dpsynth_assets.privacy.ledger.terms import ZCDP


def refusal_of(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    chosen: Sequence[PlannedMethod],
    ledger: Ledger,
    release: str,
) -> str | None:
    """Why the chosen methods may not be released once more; None if all of them may.

    The whole round is asked for at once: two releases that fit one by one may not fit together,
    into the total or into the month.
    """
    for planned in chosen:
        if planned.plan.refusal is not None:
            return f"{planned.folder}: {planned.plan.refusal}"
    requests = [r for planned in chosen for r in _requests(spec, planned, release)]
    return _first_refusal(spec, plan, requests, ledger)


def first_run_refusal(spec: PrivateDatasetSpec, plan: DatasetPlan, ledger: Ledger) -> str | None:
    """Why a cohort may not be released for the first time, shared histograms included."""
    for planned in plan.methods:
        if planned.plan.refusal is not None:
            return f"{planned.folder}: {planned.plan.refusal}"
    shared = [
        _shared_request(spec, line)
        for line in plan.releases
        if line.asset.startswith(f"{spec.name}/{SHARED}/")
    ]
    own = [r for planned in plan.methods for r in _requests(spec, planned, "1")]
    return _first_refusal(spec, plan, [*shared, *own], ledger)


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
    spec: PrivateDatasetSpec, planned: PlannedMethod, release: str
) -> list[ReleaseRequest]:
    """What one method would charge: each of its stages, or its corpus."""
    if not isinstance(planned.method, StagedMethod):
        return [corpus_request(spec, planned, release=release)]
    return [stage_request(spec, planned, name, release=release) for name in planned.plan.stages]


def _shared_request(spec: PrivateDatasetSpec, line: PlannedRelease) -> ReleaseRequest:
    """Stands for a shared histogram: only who pays, for what, and how much, decides admission."""
    return ReleaseRequest(
        cohort=spec.account,
        dataset=spec.dataset,
        asset=line.asset,
        mechanism="shared histogram",
        guarantee=GuaranteeType.DP,
        event=line.event,
        parameters={},
        code_version="",
        data_version=spec.source.version,
    )


def _joint_requests(
    spec: PrivateDatasetSpec, requests: list[ReleaseRequest]
) -> list[ReleaseRequest]:
    """What stands for the whole round when asked of the ledger.

    A fixed plan is charged by whole rounds, so each request already stands for all. An adaptive
    budget adds up, so the round is asked for as one composed release.
    """
    events = [request.event for request in requests if request.event is not None]
    if spec.budget.accountant != ZCDP or not events:
        return requests
    joint = next(request for request in requests if request.event is not None)
    ex_post = [request for request in requests if request.event is None]
    return [replace(joint, event=ComposedEvent(events=tuple(events))), *ex_post]
