"""Releases are asked for as they were: what was paid for is found again by what names it.

`data/requests_of_format_1` holds dataset files of end-to-end tests and what their runs asked for.
"""

import json
import math
from pathlib import Path

import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import corpus_request, stage_request
from dpsynth_assets.methods.planning import plan_dataset

FILES = sorted((Path(__file__).parents[1] / "data" / "requests_of_format_1").glob("*.json"))

NAMES = {"language_model": "public_language_model"}
"""Names of inputs in charges of private prediction -> names of public artifacts."""


def asked_again(spec, plan, charge):
    """What is asked for today where a charge was made."""
    _, folder, name = charge["asset"].split("/")
    part = next(part for part in plan.parts if part.folder == folder and named(part, name))
    known, release = charge["parameters"], charge["release"]
    inputs = {NAMES.get(k, k): v for k, v in (known.get("inputs") or {}).items()}
    inputs |= {k: known[k] for k in ("public_clusters",) if k in known}
    if name not in [stage.name for stage in part.plan.stages]:
        return corpus_request(
            spec, part, rows=known["rows"], inputs=inputs, release=release, run_id=""
        )
    return stage_request(spec, part, part.plan.stage(name), release=release, inputs=inputs)


def named(part, name):
    return name == "candidate_corpus" or name in [stage.name for stage in part.plan.stages]


def nearly(one, other):
    """Whether two JSON values are equal, numbers up to the last bits that machines differ in."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(nearly(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(nearly, one, other))
    return one == other


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_release_is_asked_for_as_it_was(file, own_home):
    kept = json.loads(file.read_text())
    spec = PrivateDatasetSpec.model_validate(kept["dataset"])
    plan = plan_dataset(spec)
    assert kept["charges"]
    for charge in kept["charges"]:
        request = asked_again(spec, plan, charge)
        asked = json.loads(json.dumps(dict(request.parameters)))
        words = {k: v for k, v in asked.items() if k not in ("rests_on", "noise")}
        assert nearly(words, charge["parameters"]), charge["asset"]
        assert (request.mechanism, request.code_version) == (
            charge["mechanism"],
            charge["code_version"],
        )
