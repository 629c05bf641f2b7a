"""A small cohort that may lie in any number of parts."""

from multiprocessing.reduction import ForkingPickler

import polars as pl
import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.private_prediction.declared_batches import RecordCells
from dpsynth_assets.methods.private_prediction.split_batches import SlotCells
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.workers import LocalWorkers

LABELS = ("good", "bad")
BY_LABEL = SlotCells(
    record_cells=RecordCells(labels=LABELS), cells=tuple((n, None) for n in range(len(LABELS)))
)
"""Counts records by label, without embeddings."""
WORDS = ["river", "lantern", "orchard", "winter", "harbour", "copper", "meadow", "violin"]
SECRET = "Ottoline Brackenbury"
MANIFEST = {"model": None, "max_tokens": 32, "name": "all-MiniLM-L6-v2"}


def texts(count=60):
    return [
        f"{SECRET} {n} saw the {WORDS[n % 8]} and the {WORDS[n // 3 % 8]} that day"
        for n in range(count)
    ]


def declared(folder, rows=60, name="letters", **changes):
    """A cohort of `rows` records of `rows // 3` units, two labels, the bound at two."""
    source = folder / f"{name}.csv"
    if not source.exists():
        pl.DataFrame(
            {
                "text": texts(rows),
                "label": [LABELS[n % 5 % 2] for n in range(rows)],
                "who": [f"u{n % (rows // 3)}" for n in range(rows)],
            }
        ).write_csv(source)
    base = {
        "name": name,
        "source": {"path": str(source)},
        "columns": {"labels": ["label"]},
        "public_facts": {"labels": {"label": list(LABELS)}},
        "privacy_unit": {"column": "who", "max_records": 2},
        "budget": {"epsilon": 8, "delta": 1e-6},
        "public_data": "tiny",
        "cluster_histogram": {"budget_share": 0.5, "clusters_per_label": 2},
        "methods": [{"method": "mean_clustered", "settings": {"max_batches": 1}}],
        "held_out_fraction": 0.2,
    }
    return PrivateDatasetSpec.model_validate(base | changes)


def silent(*_):
    pass


class Watching:
    """One worker; `seen`: what it was given for each part, its GPUs, and what it returned."""

    count = 1

    def __init__(self):
        self.seen = []

    def map_parts(self, function, parts, *, gpus=0, memory=0):
        given = repr(function) + repr(parts), ForkingPickler.dumps(function).tobytes()
        for result in LocalWorkers(1).map_parts(function, parts, gpus=gpus, memory=memory):
            self.seen.append((*given, gpus, result))
            yield result


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    return SensitiveStore()
