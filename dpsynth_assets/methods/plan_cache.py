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
from typing import Any

from dpsynth_assets.files.kept import JSON, Form, kept_file
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import training_noise_multiplier
from dpsynth_assets.privacy.dp_sgd import dp_sgd_event
from dpsynth_assets.privacy.events import Event, PoissonGaussianEvent, event_to_json

PACKAGES = ("dpsynth_assets", "dp_accounting", "numpy", "scipy")
"""Packages whose versions decide the last digits of a calibration."""


def remembered(key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """Returns the value kept under `key`, or computes it and keeps it.

    Args:
        key: Everything the value depends on, as JSON values; package versions are added.
        compute: Computes the value, a JSON value; called when nothing readable is kept.

    Returns:
        The value. Floats survive JSON exactly, so it is the same whether computed or read.
    """

    def read(place: Path) -> dict[str, Any]:
        return {"value": JSON.read(place)["value"]}

    place = home().plans / f"{_digest(key)}.json"
    form = Form(read, JSON.write)
    return kept_file(place, lambda: {"key": key, "value": compute()}, form)["value"]


def remembered_epsilon(events: Sequence[Event], terms: CohortTerms) -> float:
    """ε of events together, for people who plan; the ledger composes the events itself."""
    key = {
        "epsilon of": [event_to_json(event) for event in events],
        "at": [terms.delta, terms.accountant],
    }
    return float(remembered(key, lambda: epsilon_of(events, terms.delta, terms.accountant)))


def sampled_steps(
    terms: CohortTerms, sampling_probability: float, steps: int
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
    terms: CohortTerms, *, sampling_probability: float, steps: int, target_epsilon: float
) -> float:
    """Finds the least noise multiplier of T steps over Poisson samples, in seconds or from a file.

    Args:
        terms: Declared facts; `terms.accountant` decides what the noise is calibrated to.
        sampling_probability: q of every record in every step.
        steps: T.
        target_epsilon: ε that all steps may cost alone at δ.
    """
    asked: dict[str, Any] = {
        "sampling_probability": sampling_probability,
        "steps": steps,
        "target_epsilon": target_epsilon,
    }
    # Only a filter looks at the whole budget.
    budget = {"budget_epsilon": terms.epsilon} if terms.accountant == "zcdp" else {}
    key = {"calibration": "sampled steps", **asked, **budget, **terms.priced_by}

    def find() -> float:
        return training_noise_multiplier(
            sampled_steps(terms, sampling_probability, steps),
            target_epsilon=target_epsilon,
            budget_epsilon=terms.epsilon,
            delta=terms.delta,
            accountant=terms.accountant,
        )

    return float(remembered(key, find))


def _digest(key: Mapping[str, Any]) -> str:
    text = json.dumps({"key": key, "versions": _versions()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _versions() -> dict[str, str]:
    """Read once: a process that builds definitions asks a hundred times."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
