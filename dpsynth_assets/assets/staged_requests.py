"""What the assets of a staged method ask of the ledger, and read back of earlier stages."""

import zlib
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dpsynth_assets.assets.mechanism import StoredRelease
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planned import PlannedMethod
from dpsynth_assets.methods.staged import Released, StagedMethod
from dpsynth_assets.privacy.events import POST_PROCESSING, Event
from dpsynth_assets.privacy.ledger import ReleaseRequest
from dpsynth_assets.privacy.rests_on import RESTS_ON
from dpsynth_assets.resources.release_store import ReleaseStore


def stage_request(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    stage: str,
    *,
    release: str,
    run_id: str = "",
    inputs: Mapping[str, str] | None = None,
    stated: Mapping[str, Any] | None = None,
    public: bool = False,
) -> ReleaseRequest:
    """What one stage asks of the ledger; equal requests are one release.

    Settings that its release does not depend on are no part of it: other rows never pay again. A
    `public` stage is recorded and charged nothing. What is `stated` (`RESTS_ON`) is no part of it.
    """
    settings = staged_method(planned).stage_settings(stage, planned.plan.parameters)
    return staged_request(
        spec,
        planned,
        stage,
        event=POST_PROCESSING if public else planned.plan.stages[stage],
        parameters={
            **settings,
            **engine_identity(spec, planned),
            "stage": stage,
            "inputs": dict(inputs or {}),
            **_facts(planned, stage, stated or {}),
        },
        release=release,
        run_id=run_id,
    )


def _facts(planned: PlannedMethod, stage: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """What the release rests on: how its inputs were made, and what its plan says of the stage."""
    rests_on = {**stated.get(RESTS_ON, {}), **planned.plan.rests_on.get(stage, {})}
    return {**stated, RESTS_ON: rests_on}


def staged_request(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    artifact: str,
    *,
    event: Event,
    parameters: Mapping[str, Any],
    release: str,
    run_id: str,
) -> ReleaseRequest:
    """A request in the name of one asset of the method."""
    return ReleaseRequest(
        cohort=spec.account,
        dataset=spec.dataset,
        asset=f"{spec.name}/{planned.folder}/{artifact}",
        mechanism=planned.method.name,
        guarantee=planned.plan.guarantee,
        event=event,
        parameters=parameters,
        code_version=planned.method.code_version,
        data_version=spec.source.version,
        release=release,
        run_id=run_id,
    )


def engine_identity(spec: PrivateDatasetSpec, planned: PlannedMethod) -> dict[str, str]:
    """The model an engine is told to serve: another one makes another release.

    What merely runs it (kind, device, batch size) does not; a public model of the base is among
    the public inputs already.
    """
    if spec.engine.model is None or not planned.method.uses_engine(planned.config):
        return {}
    return {"engine_model": spec.engine.model}


def staged_method(planned: PlannedMethod) -> StagedMethod:
    """The staged method itself.

    Raises:
        TypeError: If the method has no stages.
    """
    if not isinstance(planned.method, StagedMethod):
        raise TypeError(f"Expected a staged method, got {planned.method.name}.")
    return planned.method


def refuse_if_planned_so(planned: PlannedMethod) -> None:
    """Fails with the plan's refusal, if it has one, before anything is charged or read."""
    if planned.plan.refusal is not None:
        raise dg.Failure(description=planned.plan.refusal, allow_retries=False)


def released_stage(value: Mapping[str, Any], store: ReleaseStore) -> Released:
    """An earlier stage's release, from what its asset handed on."""
    reservation = str(value["reservation"])
    return Released(reservation=reservation, facts=value["facts"], folder=store.files(reservation))


def release_seed(release: str) -> int:
    """Seed of public randomness: another release writes other rows from the same models."""
    return zlib.crc32(release.encode())


def shown_facts(stored: StoredRelease) -> dict[str, Any]:
    """Released numbers and words short enough for a list of metadata."""
    return {k: v for k, v in stored.facts.items() if isinstance(v, int | float | str)}
