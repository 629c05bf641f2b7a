"""Labels say how the records behind a release were embedded, and nothing is paid again for it."""

import numpy as np
import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.files import dataset_folders
from dpsynth_assets.datasets.standing import standing
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.models.text_embedder import Arithmetic
from dpsynth_assets.orchestration.resources.stores import SensitiveStore
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING
from dpsynth_assets.report.label import corpus_label
from dpsynth_assets.report.label_texts import embedded, texts
from dpsynth_assets_tests.privacy.ledger_cases import make_request, make_terms, release
from dpsynth_assets_tests.stored import write_embeddings

HISTOGRAM = "tickets/shared/cluster_histogram"


def stated(arithmetic):
    made_by = {"model": "a model", "arithmetic": str(arithmetic), "device": "cuda"}
    return {"rests_on": {"embeddings": made_by}}


@pytest.mark.parametrize("arithmetic", list(Arithmetic))
def test_a_label_names_the_arithmetic_of_the_embeddings_it_rests_on(ledger, arithmetic):
    behind = release(ledger, asset=HISTOGRAM, parameters=stated(arithmetic))
    parameters = {"inputs": {"cluster_histogram": behind}, "rests_on": {}}
    corpus = release(ledger, parameters=parameters)
    said = corpus_label(ledger.entries(), corpus)["assumptions"]
    expected = embedded({"arithmetic": arithmetic, "model": "a model", "device": "cuda"})
    assert [line for line in said if "embedded" in line] == [expected]
    assert said.count(texts()["assumptions"]["nearest"]) == 1


def test_charges_without_embeddings_and_free_rows_say_nothing_of_them(ledger):
    plain = release(ledger, asset="tickets/vanilla/finetuned_generator")
    free = {"inputs": {"text_embedder": "abc"}}
    rows = release(ledger, event=POST_PROCESSING, parameters=free)
    counted = {"inputs": {"cluster_histogram": "r-1"}, "rests_on": {}}  # as uniform batches do
    uniform = release(ledger, parameters=counted)
    for reservation in (plain, rows, uniform):
        said = corpus_label(ledger.entries(), reservation)["assumptions"]
        assert not [line for line in said if "embedded" in line]


def test_every_charge_says_what_it_rests_on_be_it_nothing():
    specs = [file.spec for file in standing(dataset_folders()).usable]
    private = [spec for spec in specs if isinstance(spec, PrivateDatasetSpec)]
    methods = [(spec, planned) for spec in private for planned in plan_dataset(spec).methods]
    assert {planned.method.name for _, planned in methods} >= {"mean_uniform", "ctcl", "aug_pe"}
    for spec, planned in methods:
        if not planned.plan.stages:
            continue
        asked = [stage_request(spec, planned, s, release="1") for s in planned.plan.stages]
        assert all("rests_on" in request.parameters for request in asked), planned.folder


def test_what_a_release_rests_on_is_no_part_of_its_identity(ledger):
    old = release(ledger, asset=HISTOGRAM, parameters={"clusters": 2})
    spent = ledger.spend("tickets").epsilon
    request = make_request(asset=HISTOGRAM, parameters={"clusters": 2} | stated("int8"))
    again = ledger.reserve(request, make_terms())
    assert (again.reused, again.id) == (True, old)
    other = make_request(asset=HISTOGRAM, parameters={"clusters": 3} | stated("int8"))
    assert not ledger.reserve(other, make_terms()).reused
    assert ledger.spend("tickets").epsilon > spent
    assert ledger.verify().ok


def test_embeddings_of_unknown_make_are_refused_before_a_charge(tmp_path):
    store, rows = SensitiveStore.at(str(tmp_path)), np.eye(2, 3, dtype=np.float32)
    write_embeddings(store, "tickets", "source", rows, "v1", {"arithmetic": "int8"})
    store.require_stated_embeddings("tickets")
    assert store.embeddings_rest_on("tickets") == {"embeddings": {"arithmetic": "int8"}}
    (store.folder("tickets") / "source_embeddings.made_by").unlink()
    assert store.embeddings_rest_on("tickets") == {}
    with pytest.raises(PrivacyError, match=r"Materialise tickets/shared/private_embeddings"):
        store.require_stated_embeddings("tickets")
