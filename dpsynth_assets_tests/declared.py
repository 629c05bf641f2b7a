"""Declarations, dataset files and results of audits: the fewest fields, and a test's changes."""

import yaml

from dpsynth_assets.attacks.audits.audit import AuditResult
from dpsynth_assets.datasets import PrivateDatasetSpec

FIELDS = {
    "name": "reviews",
    "source": {"path": "reviews.csv"},
    "budget": {"epsilon": 4.0, "delta": 1e-6},
    "methods": [{"method": "mean_uniform"}],
}


def private(**changes):
    """A private dataset."""
    return PrivateDatasetSpec.model_validate(FIELDS | changes)


def written(file, attributes, kind="PrivateDataset"):
    """Writes a dataset file of one document."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"type": f"dpsynth_assets.components.{kind}", "attributes": attributes}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return file


def audit_result(name="one-draw-a-charge", **changes):
    """What an audit found; `passed` decides what it observed."""
    fields = {
        "kind": "exact",
        "claimed": 1.0,
        "observed": 1.0 if changes.get("passed", True) else 2.0,
        "passed": True,
        "seconds": 0.1,
        "version": "0",
        "finished_at": "2026-01-01T00:00:00+00:00",
    }
    return AuditResult(name=name, **{**fields, **changes})


def only(problems, file):
    """The one problem that was found: a line with file, field, expected, got and remedy."""
    assert len(problems) == 1, [str(problem) for problem in problems]
    (problem,) = problems
    parts = (str(file), problem.severity.replace("error", ""), problem.field)
    place = ": ".join(filter(None, parts))
    assert str(problem).startswith(f"{place}: expected ")
    assert ", got " in str(problem)
    assert problem.remedy
    assert "\n" not in str(problem)
    return problem
