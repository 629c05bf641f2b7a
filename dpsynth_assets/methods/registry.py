"""Every generation method by name. A new method is one module and one line here.

A package of another project adds its own by an entry point of the group `dpsynth.methods`, whose
name is the method's and whose value is its class: nothing here changes.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from dpsynth_assets.datasets.fields import Problem, problems_of, suggest
from dpsynth_assets.files.from_outside import with_those_of_others
from dpsynth_assets.methods.base import CohortTerms, Method
from dpsynth_assets.methods.epsvec import EpsVec, EpsVecOnGenerator
from dpsynth_assets.methods.evolution import AugPe, AugPeFromCorpus, SecPe
from dpsynth_assets.methods.fine_tuning import (
    Ctcl,
    DownstreamFineTuning,
    DpFineTuning,
    Resampled,
)
from dpsynth_assets.methods.private_prediction.aggregates import (
    InvisibleInk,
    MeanClustered,
    MeanSvt,
    MeanSvtOnGenerator,
    MeanUniform,
    MedianClustered,
)

GROUP = "dpsynth.methods"
"""Group of the entry points by which other packages add methods."""

_OWN: tuple[type[Method[Any]], ...] = (
    MeanUniform,
    MeanSvt,
    MeanClustered,
    MedianClustered,
    InvisibleInk,
    MeanSvtOnGenerator,
    Ctcl,
    DpFineTuning,
    Resampled,
    DownstreamFineTuning,
    AugPe,
    AugPeFromCorpus,
    SecPe,
    EpsVec,
    EpsVecOnGenerator,
)


def _is_method(loaded: object) -> bool:
    return isinstance(loaded, type) and issubclass(loaded, Method)


REGISTRY: dict[str, type[Method[Any]]] = with_those_of_others(
    {method.name: method for method in _OWN}, GROUP, "Method class", _is_method
)
"""Method classes in the order in which interfaces list them."""


def get_method(name: str) -> type[Method[Any]]:
    """Looks a method class up.

    Raises:
        KeyError: If there is none of that name; the message lists those there are.
    """
    if name not in REGISTRY:
        raise KeyError(f"Expected a method, got {name!r}. {suggest(name, sorted(REGISTRY))}")
    return REGISTRY[name]


def bound_method(name: str, settings: Mapping[str, Any], terms: CohortTerms) -> Method[Any]:
    """Binds a method to its settings and its cohort; what is not set suits the cohort's base.

    Raises:
        KeyError: If there is no such method.
        ValueError: If a setting is unknown or out of its domain.
    """
    kind = get_method(name)
    chosen = {**kind.advice.defaults(terms), **settings}
    return kind(kind.config_type.model_validate(chosen), terms)


def check_settings(method_name: str, settings: Mapping[str, Any]) -> list[Problem]:
    """Reports what a method does not accept, by field of its settings; the caller names the file.

    Raises:
        KeyError: There is no such method.
    """
    kind = get_method(method_name)
    try:
        kind.config_type.model_validate(dict(settings))
    except ValidationError as error:
        found = problems_of(error, "", kind.config_type, settings)
        return [_removed(problem, kind.config_type.constants) for problem in found]
    return []


def _removed(problem: Problem, constants: Mapping[str, Any]) -> Problem:
    if problem.field not in constants:
        return problem
    value = json.dumps(constants[problem.field])
    return replace(problem, remedy=f"It was removed: its value is always {value}. Drop it.")
