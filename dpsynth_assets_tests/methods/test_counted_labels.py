"""Who is counted: one cell for a record of a declared label, none for a null record."""

import polars as pl

from dpsynth_assets.methods.counted_labels import UNCOUNTED, counted_labels

RECORDS = pl.DataFrame({"text": ["one", " ", "three", "\n"], "label": ["x", "x", "y", "z"]})


def test_undeclared_labels_and_blank_texts_are_not_counted():
    assert counted_labels(RECORDS, ("y", "x")).tolist() == [1, UNCOUNTED, 0, UNCOUNTED]
    assert counted_labels(RECORDS.clear(), ("y", "x")).tolist() == []
