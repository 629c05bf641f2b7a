"""The documented fields are the fields that are validated."""

from pathlib import Path

from dpsynth_assets.cli.datasets import field_reference

DOCUMENT = Path(__file__).parents[1] / "docs" / "datasets.md"


def test_documented_fields_are_those_of_the_models():
    assert DOCUMENT.read_text().strip() == field_reference().strip()


def test_every_field_says_what_it_means():
    rows = [line for line in field_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    assert all(row.split("|")[3].strip() for row in rows)
