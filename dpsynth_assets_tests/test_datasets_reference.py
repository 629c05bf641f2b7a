"""The documented fields are the fields that are validated."""

from pathlib import Path

from dpsynth_assets.cli.datasets import field_reference

DOCUMENT = Path(__file__).parents[1] / "docs" / "datasets.md"


def test_documented_fields_are_those_of_the_models():
    assert DOCUMENT.read_text().strip() == field_reference().strip()
