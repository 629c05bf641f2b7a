"""A sensitive store with two records, with and without a key."""

import base64

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.paths import begin
from dpsynth_assets.sensitive.sealing import KEY_VARIABLE
from dpsynth_assets_tests.stored import write_embeddings, write_records

TEXTS = ["Ottoline Brackenbury called", "Zaphod has gout"]
RECORDS = pl.DataFrame(
    {
        "record_id": ["record-a", "record-b"],
        "unit_id": ["user-1", "user-2"],
        "text": TEXTS,
        "label": ["", ""],
    }
)
EMBEDDINGS = np.arange(6, dtype=np.float32).reshape(2, 3)


def key(byte):
    return base64.b64encode(bytes([byte]) * 32).decode()


def fill(store):
    write_records(store, "letters", "source", RECORDS)
    store.read_records.note_read("letters", "version 1", "declared", "rows")
    write_embeddings(store, "letters", "source", EMBEDDINGS, "v1")
    store.write_internal("letters", "mean_internal.json", f'"{TEXTS[0]}"')
    store.write_internal_table("letters", "non_private_corpus", RECORDS)
    return store


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    begin(tmp_path, lambda: False)  # A home, where a test takes it for one.
    return fill(SensitiveStore.at(str(tmp_path / "sensitive")))


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, key(1))
    return fill(SensitiveStore.at(str(tmp_path / "sealed")))
