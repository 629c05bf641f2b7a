"""Results of slow pure computations on public facts, kept between processes.

Planning runs whenever the web UI opens, and calibrating the noise of a sampled training takes
seconds. What it finds depends on declared facts alone, so it is kept in `DPSYNTH_HOME` under a
digest of everything that it depends on, package versions included.

**Privacy** Nothing private goes in or comes out: keys and values are public parameters of plans. A
file that somebody altered changes what a plan asks for, never what it is charged: events are built
anew from what is read here, and the ledger composes them itself before it admits a release.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpsynth_assets.files.kept import JSON, Form, kept_file
from dpsynth_assets.paths import home

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


def _digest(key: Mapping[str, Any]) -> str:
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    text = json.dumps({"key": key, "versions": versions}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
