"""Small declarations shared by the tests of schedules, automation and cohorts."""

from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.defs.resources import resources
from dpsynth_assets.orchestration.assets.public import generation_definitions, public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions


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


def definitions_of(spec: PrivateDatasetSpec) -> dg.Definitions:
    """Everything a declaration leads to, with a public base and resources."""
    base = PublicDataSpec.model_validate({"name": "demo"})
    return dg.Definitions.merge(
        public_definitions(base),
        generation_definitions(base),
        declared_definitions(spec),
        resources(),
    )
