"""Small declarations, and runs of their assets, shared by the tests of what Dagster shows."""

from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.definitions import resources
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.keys import public_key
from dpsynth_assets.orchestration.assets.public import generation_definitions, public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.privacy.ledger import Reservation
from dpsynth_assets.tags import PRIVACY, PUBLIC


def letters(**changes: Any) -> PrivateDatasetSpec:
    """A dataset `letters` of one method that decodes privately."""
    fields: dict[str, Any] = {
        "name": "letters",
        "source": {"path": "letters.jsonl"},
        "columns": {"id": "id"},
        "budget": {"epsilon": 60.0, "delta": 1e-6, "rounds": 4},
        "cluster_histogram": {},
        "methods": [{"method": "mean_uniform", "settings": {"expected_batch_size": 64}}],
    }
    return PrivateDatasetSpec.model_validate({**fields, **changes})


def pay_for(
    spec: PrivateDatasetSpec, release: str, only: str | None = None, *, killed: bool = False
) -> list[Reservation]:
    """Charges every release of a round, or those of one method, as a run would.

    Args:
        spec: The cohort.
        release: Name of the releases.
        only: Folder of the method.
        killed: Whether the run died before a commit.

    Returns:
        What was charged.
    """
    plan, book, charged = plan_dataset(spec), PrivacyLedger().open(), []
    for planned in plan.parts:
        for stage in planned.plan.stages:
            if stage.mechanism is not None and only in (None, planned.folder):
                request = stage_request(spec, planned, stage, release=release)
                charged.append(book.reserve(request, plan.budget, plan.releases))
                if not killed:
                    book.commit(charged[-1], artifact_digest="0" * 64, artifact_uri="nowhere")
    return charged


def definitions_of(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Everything a declaration leads to, with a public base and resources."""
    base = PublicDataSpec.model_validate({"name": "demo"})
    return dg.Definitions.merge(
        public_definitions(base),
        generation_definitions(base),
        declared_definitions(spec),
        resources(),
    )


_LOADED: dict[str, dg.Definitions] = {}


def loaded(spec: PrivateDatasetSpec) -> dg.Definitions:
    """The same, made once a process: definitions ask for a home only when they run."""
    written = spec.model_dump_json()
    if written not in _LOADED:
        _LOADED[written] = definitions_of(spec)
    return _LOADED[written]


def public_values(base: str, **values: Any) -> list[dg.AssetsDefinition]:
    """Assets of a public base that return such values."""

    def asset(name: str, value: Any) -> dg.AssetsDefinition:
        return dg.asset(key=public_key(base, name), tags={PRIVACY: PUBLIC})(lambda: value)

    return [asset(*each) for each in values.items()]


def run_assets(
    assets: Iterable[Any], *, chosen: Sequence[Any] | None = None, **changed: Any
) -> dg.ExecuteInProcessResult:
    """Runs assets, or those chosen, in this process with the product's resources, or others."""
    bound = {**(resources().resources or {}), **changed}
    return dg.materialize([*assets], selection=chosen, resources=bound, raise_on_error=False)


def failure(result: dg.ExecuteInProcessResult) -> str:
    """What the one step that failed says."""
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    return str(failed.step_failure_data.user_failure_data.description)
