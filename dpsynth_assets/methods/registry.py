"""Every generation method by name. A new method is one module and one line here."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dpsynth_assets.methods.base import Method
from dpsynth_assets.methods.epsvec import EpsVec
from dpsynth_assets.methods.evolution import AugPe, SecPe
from dpsynth_assets.methods.fine_tuning import (
    Ctcl,
    DownstreamFineTuning,
    DpFineTuning,
    Resampled,
)
from dpsynth_assets.methods.private_prediction.compared import InvisibleInk, MeanSvt
from dpsynth_assets.methods.private_prediction.few_shot import FewShot
from dpsynth_assets.methods.private_prediction.mean import MeanClustered, MeanUniform
from dpsynth_assets.methods.private_prediction.median import MedianClustered

REGISTRY: dict[str, Method] = {
    method.name: method
    for method in (
        MeanUniform(),
        MeanSvt(),
        MeanClustered(),
        MedianClustered(),
        InvisibleInk(),
        FewShot(),
        Ctcl(),
        DpFineTuning(),
        Resampled(),
        DownstreamFineTuning(),
        AugPe(),
        SecPe(),
        EpsVec(),
    )
}
"""Methods in the order in which interfaces list them."""


def get_method(name: str) -> Method:
    """Looks a method up.

    Raises:
        KeyError: If there is none of that name; the message lists those there are.
    """
    if name not in REGISTRY:
        raise KeyError(f"Expected a method in {sorted(REGISTRY)}, got {name!r}.")
    return REGISTRY[name]


def check_settings(method_name: str, settings: Mapping[str, Any]) -> list[str]:
    """Lists what is wrong with a method's settings, one clear line each; empty if nothing is."""
    if method_name not in REGISTRY:
        return [f"method: expected one of {sorted(REGISTRY)}, got {method_name!r}."]
    try:
        REGISTRY[method_name].config_type.model_validate(dict(settings))
    except ValidationError as error:
        return [_problem(method_name, problem) for problem in error.errors()]
    return []


def _problem(method_name: str, problem: Mapping[str, Any]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    fields = sorted(REGISTRY[method_name].config_type.model_fields)
    if problem["type"] == "extra_forbidden":
        return f"{field}: {method_name} has no such setting; it has {', '.join(fields)}."
    message = problem["msg"].removeprefix("Value error, ")
    got = "" if problem["type"] in {"missing", "value_error"} else f", got {problem['input']!r}"
    return f"{field + ': ' if field else ''}{message}{got}"
