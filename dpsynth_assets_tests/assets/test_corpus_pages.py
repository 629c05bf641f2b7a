"""The page of a corpus in the web UI: its columns, rows of every label, its own method."""

import re
from types import SimpleNamespace

import polars as pl

from dpsynth_assets.methods.registry import REGISTRY
from dpsynth_assets.orchestration.assets import stage_metadata
from dpsynth_assets.orchestration.assets.stage_metadata import column_schema, sample_table
from dpsynth_assets.orchestration.metadata import with_paper_links
from dpsynth_assets.releases.published_rows import published_rows
from dpsynth_assets.releases.store import PROVENANCE
from dpsynth_assets_tests.declared import private

ROWS = pl.DataFrame({
    "text": [f"text {i}" for i in range(12)],
    "topic of call": ["loans"] * 10 + ["cards", None],
    "id": [f"letters-mean-{i}" for i in range(12)],
})  # fmt: skip


def test_every_column_of_a_corpus_is_described():
    columns = column_schema(ROWS, ["topic of call"])["dagster/column_schema"].columns
    assert [(c.name, c.type) for c in columns] == [(n, "string") for n in ROWS.columns]
    assert "topic of call" in columns[1].description
    assert all(column.description for column in columns)
    assert {"text", "id", "reservation", *PROVENANCE} <= set(stage_metadata._MEANINGS)


def test_rows_of_every_label_stand_in_a_table_with_labels_first():
    table = sample_table(ROWS, ["topic of call"])
    assert [column.name for column in table.schema.columns] == ["topic of call", "text"]
    shown = [record.data for record in table.records]
    assert [row["topic of call"] for row in shown] == ["loans", "cards", "—", "loans", "loans"]
    assert shown[3]["text"] == "text 1"


def test_every_corpus_is_described_by_its_price_and_then_its_own_method(graph):
    for key in graph.get_all_asset_keys():
        if key.path[-1] == "corpus" and key.path[1] in REGISTRY:
            title = with_paper_links(REGISTRY[key.path[1]].title)
            first, method = graph.get(key).description.split("\n\n")
            assert method.startswith(title), key
            report = (
                f"scores: [internal report](/assets/{key.path[0]}/evaluation/evaluation_report)"
            )
            assert first.endswith(f"{report}."), key
            priced = re.match(r"ε \S+ of \S+ at δ 1e-6 by plan; scores", first) is not None
            assert priced is (key.path[0] != "cases"), "secrets are protected without an ε"


def test_labels_may_be_called_like_what_is_published_beside_them():
    names = ("id", "method", *PROVENANCE)
    made = {name: [0, 1] for name in PROVENANCE}
    label = [" | ".join([one] * len(names)) for one in "xy"]
    candidate = pl.DataFrame({"text": ["a", "b"], "label": label, "reservation": "r", **made})
    planned = SimpleNamespace(folder="mean", method=SimpleNamespace(name="mean_uniform"))
    facts = {"labels": {name: ["x", "y"] for name in names}}
    spec = private(columns={"text": "body", "labels": list(names)}, public_facts=facts)
    rows = published_rows(spec, planned, candidate)
    assert rows.select(names).rows() == [("x",) * len(names), ("y",) * len(names)]
    assert rows["dpsynth_topic"].to_list() == [0, 1]
    assert rows.columns == ["text", *names, *(f"dpsynth_{name}" for name in names)]
