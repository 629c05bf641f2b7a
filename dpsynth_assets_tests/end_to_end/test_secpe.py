"""SecPE in parts through the graph: secrets found, clusters paid for, rows for nothing, no ε.

Nothing but held-out records is ever read together.
"""

import json
import shutil

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.statement import SECRET_TOTAL
from dpsynth_assets.report.cards import corpus_problems, statement_problems
from dpsynth_assets.sensitive import store
from dpsynth_assets.sensitive.part_tasks import SECRETS_TABLE
from dpsynth_assets_tests.end_to_end.conftest import (
    CANARY,
    PUBLIC,
    House,
    definitions_of,
    installation_in,
    private_spec,
    public_spec,
)

KINDS = [
    {
        "name": "account",
        "detector": "regex",
        "pattern": r"account \d+",
        "examples": ["account 12345", "account 99"],
        "max_records": 2,
        "posterior": 0.01,
    },
    {
        "name": "code",
        "detector": "regex",
        "pattern": "XQ7[-A-Z0-9]+",
        "max_records": 1,
        "prior": 0.01,
        "posterior": 0.2,
    },
]
SETTINGS = {
    "clusters": 4,
    "iterations": 2,
    "population": 8,
    "variations": 3,
    "rows": 20,
    "max_new_tokens": 24,
}
PARTS = 3
SKIPPED = 'key:"notes/audit/mechanism_audits" or key:"notes/audit/key_reconstruction"'


@pytest.fixture(scope="module")
def house(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("secpe") / "copy"
    shutil.copytree(tiny_base, folder)
    joins = store.read_whole

    def joins_held_out_alone(places, split, *, with_embeddings):
        assert split == "held_out", "source records of all parts were read together"
        return joins(places, split, with_embeddings=with_embeddings)

    spec = private_spec(
        folder,
        name="notes",
        parts=PARTS,
        budget={"epsilon": 20.0, "delta": 1e-5, "accountant": "tight"},
        public_facts={"labels": {"label": ["billing", "delivery"]}, "records": 402},
        cluster_histogram=None,
        secrets={"planted": 12, "kinds": KINDS},
        methods=[{"method": "secpe", "settings": SETTINGS}],
        evaluation={"canaries": str(folder / "canaries.txt"), "rows": 20, "references": False},
        schedule=None,
    )
    with installation_in(folder) as instance, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "read_whole", joins_held_out_alone)
        definitions = definitions_of(public_spec(folder), spec)
        unfinished = House(folder, spec, definitions, instance)
        result = unfinished.run(f"* and not ({SKIPPED} or {PUBLIC})")
        yield House(folder, spec, definitions, instance, result)


def test_everything_ran_and_the_graph_is_sound(house):
    assert house.result.success
    verify_privacy_lineage(house.definitions)
    assert len(list(house.home.glob("sensitive/notes/parts-*/*/source_embeddings.npy"))) == PARTS
    assert not (house.home / "sensitive" / "notes" / "source.parquet").exists()
    scores = json.loads((house.home / "reports/notes/metrics.json").read_text())["table"]
    assert [(row["name"], row["scored_rows"]) for row in scores] == [
        ("real data", 20), ("secpe", 20)
    ]  # fmt: skip


def test_secrets_are_found_and_kept_for_the_owner_alone(house):
    folder = house.home / "sensitive" / "notes"
    found = list(folder.glob(f"parts-*/*/{SECRETS_TABLE}"))
    tables = [pl.read_parquet(path) for path in found]
    assert {*map(tuple, (table.columns for table in tables))} == {("record", "secret")}
    assert (len(tables), sum(table.height for table in tables)) == (PARTS, 4)  # Two hold both.
    for path in (*found, folder / "secrets_dictionary.parquet", folder / "secrets_summary.json"):
        assert path.stat().st_mode & 0o777 == 0o600
    summary = json.loads((folder / "secrets_summary.json").read_text())
    assert summary["account"]["over_cap"] == 0
    assert summary["code"] == {"secrets": 1, "most_records": 2, "over_cap": 1}
    internal = json.loads((folder / "secpe_secret_clusters_internal.json").read_text())
    assert internal["most_records_of_a_detected_secret"] == max(
        kind["most_records"] for kind in summary.values()
    )


def test_metadata_tells_declared_numbers_and_recall_and_no_count(house):
    shown = str(house.metadata("notes", "shared", "secrets"))
    assert "not measured" in shown
    assert "recall" in shown
    assert CANARY not in shown
    assert "over_cap" not in shown


def test_one_charge_for_secrets_and_none_of_epsilon(house):
    spend = Ledger(f"sqlite:///{house.home / 'ledger' / 'ledger.sqlite'}").spend("notes")
    assert (spend.epsilon, spend.total_guarantee) == (0.0, SECRET_TOTAL)
    assert 1e-4 < spend.secret_posterior <= 0.01


@pytest.mark.parametrize("asset", ["secret_clusters", "population", "candidate_corpus", "corpus"])
def test_no_epsilon_stands_beside_the_posterior(house, asset):
    shown = house.metadata("notes", "secpe", asset)
    assert (shown["dpsynth/guarantee"], shown["dpsynth/dp_guarantee"]) == ("secret", "none")
    assert "dpsynth/epsilon" not in shown
    assert shown["dpsynth/secret_posterior"] <= 0.01


def test_the_label_states_every_kind_and_what_its_detector_misses(house):
    label = json.loads((house.home / "released/notes/secpe/privacy_label.json").read_text())
    guarantee = label["guarantee"]
    assert (guarantee["type"], guarantee["dp_guarantee"]) == ("secret", "none")
    assert "epsilon" not in guarantee
    assert [kind["kind"] for kind in guarantee["kinds"]] == ["account", "code"]
    assert all(kind["posterior"] <= kind["promised"] for kind in guarantee["kinds"])
    assert [detector["recall"] for detector in label["detectors"]] == [1.0, None]


def test_the_card_says_that_there_is_no_dp_guarantee(house):
    card = (house.home / "released/notes/secpe/README.md").read_text()
    assert "- DP guarantee: none." in card
    assert "tags: [synthetic, secret-protection]" in card
    assert "found 12 of 12 planted secrets" in card
    assert "As Gaussian DP" not in card


def test_label_card_and_statement_follow_from_the_ledger(house):
    entries = Ledger(f"sqlite:///{house.home / 'ledger' / 'ledger.sqlite'}").entries()
    assert corpus_problems(house.home / "released/notes/secpe", entries) == []
    assert statement_problems(house.home / "released/notes", entries) == []
    statement = (house.home / "released/notes/privacy_statement.md").read_text()
    assert "DP guarantee: none" in statement
    assert "As Gaussian DP" not in statement


def test_the_ui_says_what_is_charged_and_what_is_not_protected(house):
    graph = house.definitions.resolve_asset_graph()
    node = graph.get(dg.AssetKey(["notes", "secpe", "secret_clusters"]))
    assert "no ε" in node.description
    assert "ex-post" not in node.description
