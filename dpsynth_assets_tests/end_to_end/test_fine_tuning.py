"""The fine-tuning family through the graph: stages that pay, then corpora that cost nothing."""

import json
import shutil
from dataclasses import replace

import dagster as dg
import polars as pl
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from dpsynth_assets.cli import serve
from dpsynth_assets.defs.resources import resources
from dpsynth_assets.exports.package import PROMPTS_FILE, Packager, export_generator
from dpsynth_assets.exports.verification import verify_package
from dpsynth_assets.methods.capabilities import RowSampling
from dpsynth_assets.methods.fine_tuning import generators as generator_inputs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.requests import stage_request
from dpsynth_assets.orchestration.assets.public import generation_definitions, public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import is_post_processing
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.card_check import corpus_problems
from dpsynth_assets.report.hub import HubFacts
from dpsynth_assets_tests.end_to_end.conftest import (
    House,
    installation_in,
    private_spec,
    public_spec,
)

TRAINING = {"steps": 4, "expected_batch_size": 32, "rows": 40, "max_document_tokens": 40}
METHODS = [
    {"method": "ctcl", "settings": TRAINING},
    {"method": "dp_fine_tuning", "settings": TRAINING},
    {"method": "resampled", "settings": {"corpus": "dp_fine_tuning", "rows": 20}},
    {
        "method": "downstream_fine_tuning",
        "settings": {"steps": 4, "expected_batch_size": 32, "task": "classification"},
    },
]
AUDITS = 'key:"notes/audit/mechanism_audits"'  # Other tests run them; they take half a minute.
BASE = 'key:"public/tiny/public_*" or key:"public/tiny/text_embedder"'
TRAINED = 'key:"notes/ctcl/finetuned_generator"'


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("fine_tuning") / "copy"
    shutil.copytree(tiny_base, folder)
    public = public_spec(folder)
    spec = private_spec(
        folder,
        name="notes",
        budget={"epsilon": 20.0, "delta": 1e-5, "accountant": "tight"},
        public_facts={"labels": {"label": ["billing", "delivery"]}, "records": 402},
        cluster_histogram=None,
        topic_histogram={"noise_std": 5.0},
        methods=METHODS,
        evaluation={
            "canaries": str(folder / "canaries.txt"),
            "rows": 40,
            "references": False,
            "next_word": True,
            "next_word_settings": {"width": 16, "heads": 2, "token_budget": 2_000},
        },
        schedule=None,
    )
    with installation_in(folder) as instance:
        definitions = dg.Definitions.merge(
            public_definitions(public),
            generation_definitions(public),
            declared_definitions(spec),
            resources(),
        )
        yield House(folder, spec, definitions, instance)


@pytest.fixture(scope="module")
def failure(unfinished):
    """What a run says whose generator cannot be trained, and what the ledger holds after it."""

    def untrainable(*arguments, **settings):
        generator = fresh_generator(*arguments, **settings)
        generator.model.slope = torch.nn.PReLU()
        generator.model.slope.register_buffer("calls", torch.zeros(1))
        return generator

    fresh_generator = generator_inputs.fresh_generator
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator_inputs, "fresh_generator", untrainable)
        result = unfinished.run(f"+{TRAINED} and not ({BASE})")
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    return failed.event_specific_data.user_failure_data.description, ledger().entries()


@pytest.fixture(scope="module")
def house(unfinished, failure):
    result = unfinished.run(f'key:"notes/*" and not {AUDITS}')  # The failed run has made the base.
    return replace(unfinished, result=result)


def test_a_generator_that_cannot_be_trained_charges_nothing_and_says_why(failure):
    told, entries = failure
    assert told.startswith("notes/ctcl/finetuned_generator: Expected trainable layers")
    assert "PReLU" in told
    assert entries == []


def ledger():
    return Ledger(home().ledger_url)


def spent(house):
    return ledger().spend("notes").epsilon


def rows_of(house, folder):
    path = home().released / "notes" / folder / "data"
    return pl.read_parquet(path)


def test_the_whole_path_runs_within_its_budget(house):
    assert house.result.success
    assert 0 < spent(house) <= house.spec.budget.epsilon
    for folder in ("ctcl", "dp_fine_tuning"):
        assert rows_of(house, folder).height > 0


def test_cards_name_every_release_behind_a_corpus(house):
    entries = ledger().entries()
    for folder, behind in {
        "ctcl": {"notes/shared/topic_histogram", "notes/ctcl/finetuned_generator"},
        "resampled": {
            "notes/shared/topic_histogram",
            "notes/dp_fine_tuning/finetuned_generator",
            "notes/dp_fine_tuning/candidate_corpus",
        },
    }.items():
        released = home().released / "notes" / folder
        assert corpus_problems(released, entries) == []
        label = house.metadata("notes", folder, "corpus")["dpsynth/privacy_label"]
        assert behind <= {mechanism["asset"] for mechanism in label["mechanisms"]}
        assert label["guarantee"]["epsilon"] > 0


def test_a_downstream_model_is_scored_beside_the_corpora(house):
    table = json.loads((home().reports / "notes" / "metrics.json").read_text())["table"]
    rows = {row["name"]: row for row in table}
    model = rows["downstream_fine_tuning model"]
    assert 0 <= model["accuracy"] <= 1
    assert 0 < model["epsilon"] < house.spec.budget.epsilon
    assert model["rows"] is None
    assert {"ctcl", "dp_fine_tuning", "resampled"} <= set(rows)
    shown = house.metadata("notes", "evaluation", "evaluation_report")
    assert "dpsynth/accuracy/downstream_fine_tuning_model" in shown


def test_metadata_holds_no_private_text(house):
    for path in (("ctcl", "finetuned_generator"), ("shared", "topic_histogram")):
        shown = str(house.metadata("notes", *path))
        assert "Brackenbury" not in shown
        assert "upset that" not in shown


def test_other_settings_of_writing_ask_for_no_other_training(house):
    def requested(**changes):
        methods = [{"method": "ctcl", "settings": {**TRAINING, **changes}}, *METHODS[1:]]
        fields = house.spec.model_dump(mode="json") | {"methods": methods}
        spec = type(house.spec).model_validate(fields)
        planned = plan_dataset(spec).method("ctcl")
        request = stage_request(spec, planned, planned.plan.stages[0], release="1")
        return request.parameters, request.event

    assert requested() == requested(rows=500, temperature=0.7, top_p=0.8, micro_batch_records=4)
    assert requested() == requested(rejection={"judge": "likelihood"})
    assert requested() != requested(learning_rate=1e-3)


@pytest.fixture(scope="module")
def package(house, tmp_path_factory):
    """The generator of CTCL as a package, and the entries before it was written."""
    plan = plan_dataset(house.spec)
    packager = Packager(spec=house.spec, plan=plan, ledger=ledger(), store=ReleaseStore())
    (planned,) = [each for each in plan.methods if each.folder == "ctcl"]
    target = tmp_path_factory.mktemp("packages") / "generator"
    before = ledger().entries()
    export_generator(packager, planned, target, HubFacts(license="cc0-1.0"), lambda events: [])
    return target, before


def test_an_exported_generator_opens_in_transformers_and_continues_its_prompts(package):
    target, _ = package
    model = AutoModelForSeq2SeqLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = json.loads((target / PROMPTS_FILE).read_text())
    assert list(prompts) == ["billing", "delivery"]
    written = model.generate(**tokenizer(prompts["billing"], return_tensors="pt"), max_new_tokens=8)
    assert tokenizer.decode(written[0], skip_special_tokens=True)


def test_an_exported_generator_is_verified_and_costs_nothing(package, house):
    target, before = package
    found = verify_package(target)
    assert found.problems == ()
    assert found.label["subject"]["kind"] == "generator"
    assert found.label["guarantee"]["epsilon"] <= spent(house)
    added = ledger().entries()[len(before) :]
    assert [(e.kind, e.mechanism) for e in added] == [("reserve", "export"), ("commit", "export")]
    assert is_post_processing(added[0].event)


def test_a_method_without_a_generator_exports_none(house, tmp_path):
    plan = plan_dataset(house.spec)
    packager = Packager(spec=house.spec, plan=plan, ledger=ledger(), store=ReleaseStore())
    (planned,) = [each for each in plan.methods if each.folder == "downstream_fine_tuning"]
    with pytest.raises(PrivacyError, match="releases a generator"):
        export_generator(packager, planned, tmp_path / "x", HubFacts(), lambda events: [])


def cohort_of(house, spec=None):
    """The finished cohort as `dpsynth serve` opens it."""
    spec = spec or house.spec
    return serve._cohort(spec, "declared")


def test_a_served_generator_writes_rows_of_the_label_under_a_line_without_any_cost(house):
    before, cohort = spent(house), cohort_of(house)
    artifact = cohort.artifact(cohort.plan.method("ctcl"))
    with artifact.open() as source:
        assert source.labels == ("billing", "delivery")
        rows = source.write([0, 1, 1], RowSampling(max_new_tokens=12), 1)
        assert len(rows) == 3
        assert rows != source.write([0, 1, 1], RowSampling(max_new_tokens=12), 2)
    label = artifact.line("2026-11-24")
    assert artifact.line("2026-11-24")["subject"] == label["subject"]
    behind = {mechanism["asset"] for mechanism in label["mechanisms"]}
    paid = {"notes/ctcl/finetuned_generator", "notes/shared/topic_histogram"}
    assert behind == paid | {"notes/ctcl/served"}
    assert spent(house) == before
    (line,) = [e for e in ledger().entries() if e.asset.endswith("/served") and e.kind == "reserve"]
    assert line.release == "2026-11-24"
    assert is_post_processing(line.event)


def test_a_generator_whose_files_were_altered_is_not_served(house):
    cohort = cohort_of(house)
    charge = cohort.artifact(cohort.plan.method("ctcl")).charge
    (weights,) = ReleaseStore().files(charge.reservation).glob("*.safetensors")
    original = weights.read_bytes()
    weights.write_bytes(original + b"x")
    with pytest.raises(PrivacyError, match="altered"):
        cohort.artifact(cohort.plan.method("ctcl"))
    weights.write_bytes(original)


def test_what_was_not_released_or_writes_no_rows_is_not_served(house):
    cohort = cohort_of(house)
    with pytest.raises(PrivacyError, match="writes rows on demand"):
        cohort.artifact(cohort.plan.method("downstream_fine_tuning"))
    entries = house.spec.methods
    other = [entries[0].model_copy(update={"name": "never"}), *entries[1:]]
    unreleased = cohort_of(house, house.spec.model_copy(update={"methods": other}))
    with pytest.raises(PrivacyError, match="notes/never/finetuned_generator, got none"):
        unreleased.artifact(unreleased.plan.method("never"))
