"""Results of slow pure computations on public facts, kept between processes.

Planning runs whenever the web UI opens, and calibrating the noise of a sampled training takes
seconds. What it finds depends on declared facts alone, so it is kept in `DPSYNTH_HOME` under a
digest of everything that it depends on, package versions included.

**Privacy** Nothing private goes in or comes out: keys and values are public parameters of plans. A
file that somebody altered changes what a plan asks for, never what it is charged: events are built
again from what is read here, and the ledger composes them itself before it admits a release.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.files.kept import JSON, Form, kept_file
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import training_noise_multiplier
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import Event, PoissonGaussianEvent

if TYPE_CHECKING:
    from dpsynth_assets.methods.base import CohortTerms

PACKAGES = ("dpsynth_assets", "dp_accounting", "numpy", "scipy")
"""Packages whose versions decide the last digits of a calibration."""


def remembered(key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """Returns the value kept under `key`, or computes it and keeps it.

    Args:
        key: Everything the value depends on: JSON values, events, declarations; package versions
            are added.
        compute: Computes the value, a JSON value; called when nothing readable is kept.

    Returns:
        The value. Floats survive JSON exactly, so it is the same whether computed or read.
    """

    def read(place: Path) -> dict[str, Any]:
        return {"value": JSON.read(place)["value"]}

    stated = json.dumps({"key": key, "versions": _versions()}, sort_keys=True, default=_stated)
    place = home().plans / f"{hashlib.sha256(stated.encode()).hexdigest()[:32]}.json"
    form = Form(read, JSON.write)
    return kept_file(place, lambda: {**json.loads(stated), "value": compute()}, form)["value"]


def remembered_call(function: Callable[..., Any], **arguments: Any) -> Any:
    """What a pure function of public facts gives, kept under its name and its arguments.

    Args:
        function: Of a module; another result of the same arguments needs another name.
        **arguments: Everything that the value depends on.
    """
    key = {"call": f"{function.__module__}.{function.__name__}", **arguments}
    return remembered(key, lambda: function(**arguments))


def remembered_epsilon(events: Sequence[Event], terms: "CohortTerms") -> float:
    """ε of events together, for people who plan; the ledger composes the events itself."""
    return float(
        remembered_call(epsilon_of, events=events, delta=terms.delta, accountant=terms.accountant)
    )


def sampled_steps(
    terms: "CohortTerms", sampling_probability: float, steps: int
) -> PoissonGaussianEvent:
    """Steps over Poisson samples of a cohort, at noise multiplier 1."""
    return dp_sgd_event(
        sampling_probability=sampling_probability,
        noise_multiplier=1.0,
        steps=steps,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )


def sampled_noise(
    terms: "CohortTerms", *, sampling_probability: float, steps: int, target_epsilon: float
) -> float:
    """Finds the least noise multiplier of T steps over Poisson samples, in seconds or from a file.

    Args:
        terms: Declared facts; `terms.accountant` decides what the noise is calibrated to.
        sampling_probability: q of every record in every step.
        steps: T.
        target_epsilon: ε that all steps may cost alone at δ.
    """
    return float(
        remembered_call(
            training_noise_multiplier,
            training=sampled_steps(terms, sampling_probability, steps),
            target_epsilon=target_epsilon,
            budget_epsilon=terms.epsilon,
            delta=terms.delta,
            accountant=terms.accountant,
        )
    )


def _stated(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else [type(value).__name__, vars(value)]


@cache
def _versions() -> dict[str, str]:
    """Read once: a process that builds definitions asks a hundred times."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
