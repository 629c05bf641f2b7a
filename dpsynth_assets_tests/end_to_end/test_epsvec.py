"""EPSVec through the graph: two charges, and rows that cost nothing."""

import shutil
from dataclasses import replace

import dagster as dg
import polars as pl
import pytest

from dpsynth_assets.cli import serve
from dpsynth_assets.defs.resources import resources
from dpsynth_assets.methods.capabilities import RowSampling
from dpsynth_assets.methods.epsvec.vectors import VECTORS_FILE, DatasetVectors
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.requests import stage_request
from dpsynth_assets.orchestration.assets.public import public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import event_from_json
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.card_check import corpus_problems
from dpsynth_assets_tests.end_to_end.conftest import (
    House,
    installation_in,
    private_spec,
    public_spec,
)

SETTINGS = {
    "candidates": 12,
    "negatives": 12,
    "clip_documents": 20,
    "max_document_tokens": 24,
    "max_new_tokens": 24,
    "rows": 24,
    "layers": [0, 1],
}
PAID = {"diary/epsvec/fixed_shots", "diary/epsvec/dataset_vectors"}
AUDITS = 'key:"diary/audit/mechanism_audits"'  # Other tests run them; they take half a minute.


def spec_of(folder, **changes):
    fields = {
        "name": "diary",
        "budget": {"epsilon": 8.0, "delta": 1e-5, "accountant": "tight"},
        "public_facts": {"labels": {"label": ["billing", "delivery"]}, "records": 402},
        "cluster_histogram": None,
        "methods": [{"method": "epsvec", "settings": SETTINGS}],
        "evaluation": {
            "canaries": str(folder / "canaries.txt"),
            "rows": 24,
            "references": False,
        },
        "schedule": None,
    }
    return private_spec(folder, **(fields | changes))


@pytest.fixture(scope="module")
def house(tmp_path_factory, tiny_base):
    """A whole run."""
    folder = tmp_path_factory.mktemp("epsvec") / "copy"
    shutil.copytree(tiny_base, folder)
    spec = spec_of(folder)
    with installation_in(folder) as instance:
        definitions = dg.Definitions.merge(
            public_definitions(public_spec(folder)), declared_definitions(spec), resources()
        )
        begun = House(folder, spec, definitions, instance)
        yield replace(begun, result=begun.run(f'key:"diary/*" and not {AUDITS}'))


def ledger():
    return Ledger(home().ledger_url)


def spent():
    return ledger().spend("diary").epsilon


def vectors():
    entry = next(
        each
        for each in ledger().entries()
        if each.kind == "reserve" and each.asset == "diary/epsvec/dataset_vectors"
    )
    return home().artifacts / "releases" / entry.reservation / "files" / VECTORS_FILE


def test_the_whole_path_runs_within_its_budget(house):
    assert house.result.success
    assert 0.99 * 8.0 < spent() <= 8.0
    rows = pl.read_parquet(home().released / "diary" / "epsvec" / "data")
    assert set(rows["label"].unique()) == {"billing", "delivery"}


def test_the_lineage_holds(house):
    verify_privacy_lineage(house.definitions)


def test_vectors_are_stored_with_what_the_ledger_charged_for_them(house):
    stored = DatasetVectors.load(vectors().parent)
    planned = plan_dataset(house.spec).method("epsvec").plan
    assert event_from_json(stored.cost) == planned.charges["dataset_vectors"]
    assert stored.layers == (0, 1)
    assert planned.epsilon == pytest.approx(
        epsilon_of(list(planned.charges.values()), 1e-5, "tight")
    )


def test_more_rows_later_cost_nothing_and_vectors_stay_as_they_are(house):
    before, entries, content = spent(), len(ledger().entries()), vectors().read_bytes()
    op = "diary__epsvec__candidate_corpus"
    result = house.run(
        'key:"diary/epsvec/candidate_corpus" or key:"diary/epsvec/corpus"',
        run_config={"ops": {op: {"config": {"rows": 40}}}},
    )
    assert result.success
    assert spent() == before
    assert len(ledger().entries()) == entries + 2  # The rows are recorded, and charge nothing.
    metadata = house.metadata("diary", "epsvec", "candidate_corpus")
    assert metadata["dpsynth/epsilon_charged"] == 0.0
    assert metadata["dpsynth/epsilon"] == pytest.approx(before, rel=1e-3)
    assert 30 < metadata["dagster/row_count"] <= 40
    assert house.run(f'key:"diary/epsvec/*" and not {AUDITS}').success
    assert (spent(), vectors().read_bytes()) == (before, content)


def test_cards_name_every_release_behind_the_corpus(house):
    released = home().released / "diary" / "epsvec"
    assert corpus_problems(released, ledger().entries()) == []
    label = house.metadata("diary", "epsvec", "corpus")["dpsynth/privacy_label"]
    assert {mechanism["asset"] for mechanism in label["mechanisms"]} >= PAID
    assert label["guarantee"]["epsilon"] > 0


def test_metadata_holds_no_private_text(house):
    for stage in ("candidate_pool", "fixed_shots", "negative_set", "dataset_vectors"):
        shown = str(house.metadata("diary", "epsvec", stage))
        assert "Brackenbury" not in shown
        assert "upset that" not in shown


def test_other_settings_of_writing_and_other_engines_ask_for_the_same_or_other_vectors(house):
    def requested(engine=None, **changes):
        methods = [{"method": "epsvec", "settings": {**SETTINGS, **changes}}]
        fields = house.spec.model_dump(mode="json", exclude_none=True) | {"methods": methods}
        fields["engine"] = engine or {}
        spec = type(house.spec).model_validate(fields)
        planned = plan_dataset(spec).method("epsvec")
        request = stage_request(spec, planned, planned.plan.stage("dataset_vectors"), release="1")
        return request.parameters, request.event

    free = {"rows": 500, "temperature": 0.7, "strengths": [2.0]}
    assert requested() == requested(**free) == requested({"kind": "vllm"})
    assert requested() != requested(layers=[1])
    assert requested() != requested({"model": "other/model"})


def test_an_endpoint_is_refused_before_anything_is_charged(house):
    engine = {"kind": "openai", "model": "m", "base_url": "https://host/v1"}
    spec = spec_of(house.folder, name="diary2", engine=engine)
    plan = plan_dataset(spec)
    assert plan.releases == ()
    assert "private text" in plan.method("epsvec").plan.refusal


def test_served_vectors_write_rows_of_the_label_and_cost_nothing(house):
    cohort = serve._cohort(house.spec, "declared")
    artifact = cohort.artifact(cohort.plan.method("epsvec"))
    before = cohort.ledger.spend("diary").epsilon
    with artifact.open() as source:
        labels = range(len(source.labels))
        rows = source.write([*labels, *labels], RowSampling(max_new_tokens=8, top_p=0.9), 1)
        assert len(rows) == 2 * len(source.labels)
        assert any(rows)
        assert source.tokens(max(rows, key=len)) > 0
    label = artifact.line("2026-11-24")
    behind = {mechanism["asset"] for mechanism in label["mechanisms"]}
    assert {"diary/epsvec/dataset_vectors", "diary/epsvec/served"} <= behind
    assert label["guarantee"]["epsilon"] <= before
    assert cohort.ledger.spend("diary").epsilon == before
