"""A cohort in parts through the graph: nothing but held-out records is ever read together."""

import json
import shutil

import pytest

from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.sensitive import store
from dpsynth_assets_tests.end_to_end.conftest import (
    PUBLIC,
    House,
    definitions_of,
    installation_in,
    private_spec,
    public_spec,
)
from dpsynth_assets_tests.end_to_end.test_secpe import KINDS, SETTINGS

EPSVEC = {
    "candidates": 4,
    "shots": 1,
    "negatives": 4,
    "rows": 20,
    "max_new_tokens": 16,
    "max_document_tokens": 16,
    "clip_documents": 10,
}
SKIPPED = 'key:"notes/audit/mechanism_audits" or key:"notes/audit/key_reconstruction"'


@pytest.fixture(scope="module")
def house(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("parts") / "copy"
    shutil.copytree(tiny_base, folder)
    joins = store.read_whole

    def joins_held_out_alone(places, split, *, with_embeddings):
        assert split == "held_out", "source records of all parts were read together"
        return joins(places, split, with_embeddings=with_embeddings)

    spec = private_spec(
        folder,
        name="notes",
        parts=3,
        budget={"epsilon": 2.0, "delta": 1e-5, "accountant": "tight"},
        public_facts={"labels": {"label": ["billing", "delivery"]}, "records": 402},
        cluster_histogram=None,
        secrets={"planted": 12, "kinds": KINDS},
        methods=[
            {"method": "secpe", "settings": SETTINGS},
            {"method": "epsvec", "budget_share": 0.5, "settings": EPSVEC},
        ],
        evaluation={"canaries": str(folder / "canaries.txt"), "rows": 20, "references": False},
        schedule=None,
    )
    with installation_in(folder) as instance, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "read_whole", joins_held_out_alone)
        definitions = definitions_of(public_spec(folder), spec)
        unfinished = House(folder, spec, definitions, instance)
        result = unfinished.run(f"* and not ({SKIPPED} or {PUBLIC})")
        yield House(folder, spec, definitions, instance, result)


def test_every_stage_ran_over_parts(house):
    assert house.result.success
    assert len(list(house.home.glob("sensitive/notes/parts-*/*/source_embeddings.npy"))) == 3
    assert not (house.home / "sensitive" / "notes" / "source.parquet").exists()


def test_corpora_are_published_and_scored(house):
    released = house.home / "released" / "notes"
    assert {path.parent.name for path in released.glob(f"*/{LABEL_FILE}")} == {"secpe", "epsvec"}
    table = json.loads((house.home / "reports/notes/metrics.json").read_text())["table"]
    assert [row["name"] for row in table] == ["real data", "secpe", "epsvec"]
    assert [row["scored_rows"] for row in table] == [20, 20, 20]


def test_secrets_are_counted_over_all_parts(house):
    folder = house.home / "sensitive" / "notes"
    summary = json.loads((folder / "secrets_summary.json").read_text())
    assert summary["code"] == {"secrets": 1, "most_records": 2, "over_cap": 1}
    internal = json.loads((folder / "secpe_secret_clusters_internal.json").read_text())
    most = max(kind["most_records"] for kind in summary.values())
    assert internal["most_records_of_a_detected_secret"] == most
    assert len(list(folder.glob("parts-*/*/secrets.parquet"))) == 3
