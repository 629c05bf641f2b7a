"""Declarations and dataset files of tests: the fewest fields that hold, and a test's changes."""

import yaml

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


def only(problems, file):
    """The one problem that was found: a line with file, field, expected, got and remedy."""
    assert len(problems) == 1, [str(problem) for problem in problems]
    (problem,) = problems
    place = ": ".join(filter(None, (str(file), problem.field)))
    assert str(problem).startswith(f"{place}: expected ")
    assert ", got " in str(problem)
    assert problem.remedy
    assert "\n" not in str(problem)
    return problem
