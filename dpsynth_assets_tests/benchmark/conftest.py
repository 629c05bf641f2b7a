"""A benchmark that takes seconds: invented letters, a model of a few thousand numbers."""

from pathlib import Path

import polars as pl
import pytest

from dpsynth_assets_tests.declared import written
from dpsynth_assets_tests.tiny_models import write_language_model

ROOT = Path(__file__).parents[2]
AUG_PE = {"population": 20, "variations": 2, "iterations": 1, "max_new_tokens": 24}


def attributes(folder: Path, **changes) -> dict:
    """Fields of the benchmark over the letters in a folder."""
    return {
        "name": "tiny",
        "datasets": {
            "letters": {
                "path": str(folder / "letters.csv"),
                "label": "label",
                "documents": str(folder / "public.csv"),
                "public": True,
                "domain": "Letters to a bank",
                "held_out": 100,
            }
        },
        "public": {
            "language_model": {"kind": "pretrained", "model": str(folder / "model")},
            "clusters": {"count": 6},
        },
        "methods": [{"name": "evolved", "method": "aug_pe", "settings": AUG_PE}],
        "references": ["public_only", "real_data"],
        "grid": [{"epsilons": [8], "records": [300]}, {"epsilons": [4], "records": [150]}],
        "rows": 24,
        "scored_rows": 20,
        "next_word": False,
        **changes,
    }


def write(folder: Path, **changes) -> Path:
    """Writes the benchmark's file."""
    file = folder / "benchmarks" / "tiny" / "defs.yaml"
    return written(file, attributes(folder, **changes), "Benchmark")


@pytest.fixture(scope="session")
def letters(tmp_path_factory) -> Path:
    """A folder with the letters of the demo's grammar: benchmark records and public documents."""
    import mailboxes

    folder = tmp_path_factory.mktemp("letters")
    kept = pl.DataFrame(mailboxes.private_rows(500, 1)).select("text", "label")
    kept.write_csv(folder / "letters.csv")
    shown = pl.DataFrame(mailboxes.public_rows(120, 0)).select("text", "label")
    shown.write_csv(folder / "public.csv")
    write_language_model(folder / "model")
    return folder


@pytest.fixture
def home(own_home) -> Path:
    """An installation of its own."""
    return own_home
