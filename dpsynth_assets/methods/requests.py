"""Requests to the ledger: equal requests are one release, and are paid for once."""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.dependencies import Part
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, Stage
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.privacy.guarantees import RESTS_ON
from dpsynth_assets.privacy.ledger import ReleaseRequest


def stage_request(
    spec: PrivateDatasetSpec,
    planned: Part,
    stage: Stage,
    *,
    release: str,
    run_id: str = "",
    inputs: Mapping[str, str] | None = None,
    rests_on: Mapping[str, Any] | None = None,
) -> ReleaseRequest:
    """Asks for one stage.

    Settings that its release does not depend on are no part of the request: other rows never pay
    again. A public stage is recorded and charged nothing.

    Args:
        spec: The dataset.
        planned: Method or shared histogram.
        stage: A stage of its plan.
        release: Name of the release.
        run_id: Dagster run that asks.
        inputs: Identity of each public artifact and earlier release that the stage reads.
        rests_on: Facts about its inputs that the label states; no part of its identity.
    """
    if stage.mechanism is None and not stage.public:
        raise TypeError(f"Expected a planned stage {stage.name}, got one without a mechanism.")
    parameters = stage.request_parameters(inputs or {})
    return ReleaseRequest(
        **_of_part(spec, planned, stage.name),
        mechanism=stage.mechanism_name or planned.method.name,
        event=POST_PROCESSING if stage.mechanism is None else stage.mechanism.event(),
        parameters={**parameters, RESTS_ON: {**(rests_on or {}), **stage.rests_on}},
        release=release,
        run_id=run_id,
    )


def corpus_request(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    *,
    rows: int,
    inputs: Mapping[str, str],
    release: str,
    run_id: str,
) -> ReleaseRequest:
    """Records rows written from what a method's stages released: free post-processing."""
    return ReleaseRequest(
        **_of_part(spec, planned, CANDIDATE_CORPUS),
        mechanism=planned.method.name,
        event=POST_PROCESSING,
        parameters={
            **planned.plan.parameters,
            **({} if planned.writing is None else planned.writing.engine_identity),
            "rows": rows,
            "inputs": dict(inputs),
        },
        release=release,
        run_id=run_id,
    )


def _of_part(spec: PrivateDatasetSpec, planned: Part, name: str) -> dict[str, Any]:
    """Whose request it is, and of which version."""
    return {
        "cohort": spec.account,
        "dataset": spec.dataset,
        "asset": f"{spec.name}/{planned.folder}/{name}",
        "guarantee": planned.plan.guarantee,
        "code_version": planned.method.code_version,
        "data_version": spec.source.version,
    }
