"""What decides a draw beside its request: kept with the charge, compared where it is resumed.

A request names a release; which records stand in which batch, and what reads them, follows from the
whole declaration. So all of it is kept with the charge, but for the fields named here, and a killed
run is resumed under equal facts alone: half a draw under one division of the records and half under
another would read a record twice for one payment. docs/privacy.md has the table by field.
"""

from collections.abc import Mapping
from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.methods.dependencies import Part

_RUNNING = (
    "device",
    "batch_rows",
    "tensor_parallel_size",
    "memory_fraction",
    "cache_gib",
    "api_key_variable",
    "concurrency",
    "timeout_seconds",
    "attempts",
    "price_per_million_prompt_tokens",
    "price_per_million_new_tokens",
    "cost_limit",
)
"""Fields of an engine that say where it runs and what that may cost, not what it computes."""

NO_PART = frozenset(
    {
        "description",
        "owners",
        "budget",
        "parts",
        "cohorts.settle_minutes",
        "cohorts.delay_days",
        "evaluation",
        "schedule",
        "secrets.planted",
        "secrets.kinds.examples",
        "public_data.description",
        "public_data.language_model.device",
        "public_data.conditional_generator.device",
        *(f"engine.{name}" for name in _RUNNING),
    }
)
"""Fields that decide nothing about a draw; the price that a budget gives is in the request."""


def drawn_from(
    spec: PrivateDatasetSpec, base: PublicDataSpec | None, planned: Part
) -> dict[str, Any]:
    """Writes what the declarations decide about a method's draws: JSON values, public.

    Args:
        spec: The cohort.
        base: Its public base; None where no file declares it.
        planned: The method, or the histogram that methods share.
    """
    declared = spec.model_dump(mode="json", exclude={"methods"})
    if base is not None:
        declared["public_data"] = base.model_dump(mode="json")
    facts: dict[str, Any] = _deciding(declared)
    settings = planned.method.config.model_dump(mode="json")
    own = {name: it for name, it in settings.items() if name not in planned.plan.free_settings}
    return {**facts, "settings": own, "labels": list(spec.composite_labels[0])}


def _deciding(value: Any, path: str = "") -> Any:
    if isinstance(value, Mapping):
        places = {name: f"{path}.{name}".removeprefix(".") for name in value}
        return {
            name: _deciding(it, places[name])
            for name, it in value.items()
            if places[name] not in NO_PART
        }
    return [_deciding(each, path) for each in value] if isinstance(value, list) else value
