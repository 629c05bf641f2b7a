"""Releases that write rows later: exported as packages, and served, at no charge.

Every method runs through the Runner alone elsewhere; here one cohort of two methods went through
the graph.
"""

import json
import shutil
from dataclasses import replace

import dagster as dg
import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dpsynth_assets.cli import serve
from dpsynth_assets.definitions import resources
from dpsynth_assets.exports.package import PROMPTS_FILE, export_generator
from dpsynth_assets.exports.verification import verify_package
from dpsynth_assets.methods.capabilities import RowSampling
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.public import generation_definitions, public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.cards import HubFacts
from dpsynth_assets.run.runner import Runner
from dpsynth_assets_tests.end_to_end.conftest import (
    House,
    installation_in,
    private_spec,
    public_spec,
)

SETTINGS = {
    "ctcl": {"steps": 4, "expected_batch_size": 32, "rows": 40, "max_document_tokens": 40},
    "epsvec": {
        "candidates": 12,
        "negatives": 12,
        "clip_documents": 20,
        "max_document_tokens": 24,
        "max_new_tokens": 24,
        "rows": 24,
        "layers": [0, 1],
    },
    "downstream_fine_tuning": {"steps": 4, "expected_batch_size": 32, "task": "classification"},
}
ASKED = ("ctcl/finetuned_generator", "shared/topic_histogram", "epsvec/candidate_corpus")
RELEASED = " or ".join(f'+key:"notes/{asset}"' for asset in ASKED)


@pytest.fixture(scope="module")
def house(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("served") / "copy"
    shutil.copytree(tiny_base, folder)
    public = public_spec(folder)
    spec = private_spec(
        folder,
        name="notes",
        budget={"epsilon": 20.0, "delta": 1e-5, "accountant": "tight"},
        public_facts={"labels": {"label": ["billing", "delivery"]}, "records": 402},
        cluster_histogram=None,
        topic_histogram={"noise_std": 5.0},
        methods=[{"method": name, "settings": own} for name, own in SETTINGS.items()],
        schedule=None,
    )
    with installation_in(folder) as instance:
        definitions = dg.Definitions.merge(
            public_definitions(public),
            generation_definitions(public),
            declared_definitions(spec),
            resources(),
        )
        unfinished = House(folder, spec, definitions, instance)
        result = unfinished.run(f'({RELEASED}) and not key:"public/tiny/public_*"')
        yield replace(unfinished, result=result)


def ledger():
    return Ledger(home().ledger_url)


def spent():
    return ledger().spend("notes").epsilon


def charges_of(asset):
    entries = ledger().entries()
    return [each for each in entries if each.kind == "reserve" and each.asset == f"notes/{asset}"]


def test_the_releases_were_made_and_the_graph_is_sound(house):
    assert house.result.success
    verify_privacy_lineage(house.definitions)


def test_more_rows_later_cost_nothing(house):
    before, entries = spent(), len(ledger().entries())
    result = house.run(
        'key:"notes/epsvec/candidate_corpus"',
        run_config={"ops": {"notes__epsvec__candidate_corpus": {"config": {"rows": 40}}}},
    )
    assert result.success
    assert spent() == before
    assert len(ledger().entries()) == entries + 2  # The rows are recorded, and charge nothing.
    metadata = house.metadata("notes", "epsvec", "candidate_corpus")
    assert metadata["dpsynth/epsilon_charged"] == 0.0
    assert 30 < metadata["dagster/row_count"] <= 40


def package_of(house, folder, target, facts=None):
    plan = plan_dataset(house.spec)
    packager = Runner(plan=plan, ledger=ledger(), store=ReleaseStore())
    export_generator(packager, plan.method(folder), target, facts or HubFacts())
    return target


def test_an_exported_generator_is_verified_opens_in_transformers_and_costs_nothing(house, tmp_path):
    before = ledger().entries()
    target = package_of(house, "ctcl", tmp_path / "generator", HubFacts(license="cc0-1.0"))
    model = AutoModelForSeq2SeqLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = json.loads((target / PROMPTS_FILE).read_text())
    assert list(prompts) == ["billing", "delivery"]
    written = model.generate(**tokenizer(prompts["billing"], return_tensors="pt"), max_new_tokens=8)
    assert tokenizer.decode(written[0], skip_special_tokens=True)
    found = verify_package(target)
    assert found.problems == ()
    assert found.label["subject"]["kind"] == "generator"
    assert found.label["guarantee"]["epsilon"] <= spent()
    added = ledger().entries()[len(before) :]
    assert [(e.kind, e.mechanism) for e in added] == [("reserve", "export"), ("commit", "export")]
    assert is_post_processing(added[0].event)


def test_a_method_without_a_generator_exports_none(house, tmp_path):
    with pytest.raises(PrivacyError, match="releases a generator"):
        package_of(house, "downstream_fine_tuning", tmp_path / "x")


def artifact_of(spec, method):
    """What `dpsynth serve` opens of a finished cohort."""
    (found,) = serve._artifacts(spec, "declared", [method], accept=False)
    return found


@pytest.mark.parametrize(
    ("method", "paid"),
    [
        ("ctcl", {"notes/ctcl/finetuned_generator", "notes/shared/topic_histogram"}),
        ("epsvec", {"notes/epsvec/dataset_vectors"}),
    ],
)
def test_what_is_served_writes_rows_of_the_label_under_a_line_without_any_cost(house, method, paid):
    before, artifact = spent(), artifact_of(house.spec, method)
    with artifact.open() as source:
        assert source.labels == ("billing", "delivery")
        rows = source.write([0, 1, 1], RowSampling(max_new_tokens=12), 1)
        assert len(rows) == 3
        assert any(rows)
        assert source.tokens(max(rows, key=len)) > 0
        assert rows != source.write([0, 1, 1], RowSampling(max_new_tokens=12), 2)
    label = artifact.line("2026-11-24")
    assert artifact.line("2026-11-24")["subject"] == label["subject"]
    behind = {mechanism["asset"] for mechanism in label["mechanisms"]}
    assert paid | {f"notes/{method}/served"} <= behind
    assert label["guarantee"]["epsilon"] <= before == spent()
    (line,) = charges_of(f"{method}/served")
    assert line.release == "2026-11-24"
    assert is_post_processing(line.event)


def test_a_generator_whose_files_were_altered_is_not_served(house):
    charge = artifact_of(house.spec, "ctcl").charge
    (weights,) = ReleaseStore().files(charge.reservation).glob("*.safetensors")
    original = weights.read_bytes()
    weights.write_bytes(original + b"x")
    with pytest.raises(PrivacyError, match="altered"):
        artifact_of(house.spec, "ctcl")
    weights.write_bytes(original)


def test_what_was_not_released_or_writes_no_rows_is_not_served(house):
    with pytest.raises(PrivacyError, match="writes rows on demand"):
        artifact_of(house.spec, "downstream_fine_tuning")
    entries = house.spec.methods
    other = [entries[0].model_copy(update={"name": "never"}), *entries[1:]]
    with pytest.raises(PrivacyError, match="notes/never/finetuned_generator, got none"):
        artifact_of(house.spec.model_copy(update={"methods": other}), "never")
