"""Method families through the graph: stages that pay once, a killed one, rows that cost nothing.

One cohort of fine-tuning, EPSVec and Aug-PE. Its first run cannot train, its second is killed in an
evolution, its third goes on to the end.
"""

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
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.epsvec.vectors import VECTORS_FILE, DatasetVectors
from dpsynth_assets.methods.evolution import aug_pe
from dpsynth_assets.methods.fine_tuning import generators as generator_inputs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.orchestration.assets.public import generation_definitions, public_definitions
from dpsynth_assets.orchestration.components.cohort import declared_definitions
from dpsynth_assets.orchestration.lineage import verify_privacy_lineage
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import event_from_json, is_post_processing
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.cards import HubFacts, corpus_problems
from dpsynth_assets_tests.end_to_end.conftest import (
    CANARY,
    House,
    installation_in,
    private_spec,
    public_spec,
)

TRAINING = {"steps": 4, "expected_batch_size": 32, "rows": 40, "max_document_tokens": 40}
VECTORS = {
    "candidates": 12,
    "negatives": 12,
    "clip_documents": 20,
    "max_document_tokens": 24,
    "max_new_tokens": 24,
    "rows": 24,
    "layers": [0, 1],
}
EVOLUTION = {
    "iterations": 3,
    "population": 8,
    "variations": 3,
    "max_new_tokens": 24,
    "rows": 30,
}
SETTINGS = {
    "ctcl": TRAINING,
    "dp_fine_tuning": TRAINING,
    "resampled": {"corpus": "dp_fine_tuning", "rows": 20},
    "downstream_fine_tuning": {"steps": 4, "expected_batch_size": 32, "task": "classification"},
    "epsvec": VECTORS,
    "aug_pe": EVOLUTION,
}
CORPORA = ("ctcl", "dp_fine_tuning", "resampled", "epsvec", "aug_pe")
AUDITS = 'key:"notes/audit/mechanism_audits"'  # Other tests run them; they take half a minute.
BASE = 'key:"public/tiny/public_*" or key:"public/tiny/text_embedder"'
TRAINED, POPULATION = 'key:"notes/ctcl/finetuned_generator"', 'key:"notes/aug_pe/population"'


def methods(**changed):
    """The methods of the cohort, some with other settings."""
    settings = {name: own | changed.get(name, {}) for name, own in SETTINGS.items()}
    return [{"method": name, "settings": own} for name, own in settings.items()]


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("families") / "copy"
    shutil.copytree(tiny_base, folder)
    public = public_spec(folder)
    spec = private_spec(
        folder,
        name="notes",
        budget={"epsilon": 20.0, "delta": 1e-5, "accountant": "tight"},
        public_facts={"labels": {"label": ["billing", "delivery"]}, "records": 402},
        cluster_histogram=None,
        topic_histogram={"noise_std": 5.0},
        methods=methods(),
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


class Dying(aug_pe.PrivateVotes):
    """Votes that die in the third round, before anything of it is stored."""

    def __call__(self, rounds, population, embeddings):
        if rounds == 2:
            raise RuntimeError("killed")
        return super().__call__(rounds, population, embeddings)


@pytest.fixture(scope="module")
def killed(unfinished, failure):
    """What is stored of a population that died after two rounds."""
    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(aug_pe, "PrivateVotes", Dying)
        # The failed run has made the base.
        assert not unfinished.run(f'+{POPULATION} and key:"notes/*"').success
    (path,) = home().sensitive.glob("notes/passes/*/*/generations.parquet")
    return pl.read_parquet(path)


@pytest.fixture(scope="module")
def house(unfinished, killed):
    return replace(unfinished, result=unfinished.run(f'key:"notes/*" and not {AUDITS}'))


def ledger():
    return Ledger(home().ledger_url)


def spent():
    return ledger().spend("notes").epsilon


def charges_of(asset):
    entries = ledger().entries()
    return [each for each in entries if each.kind == "reserve" and each.asset == f"notes/{asset}"]


def released(asset, file):
    (charge,) = charges_of(asset)
    return home().artifacts / "releases" / charge.reservation / "files" / file


def test_a_generator_that_cannot_be_trained_charges_nothing_and_says_why(failure):
    told, entries = failure
    assert told.startswith("notes/ctcl/finetuned_generator: Expected trainable layers")
    assert "PReLU" in told
    assert entries == []


def test_the_whole_path_spends_its_budget_and_no_more(house):
    assert house.result.success
    verify_privacy_lineage(house.definitions)
    assert 0.99 * house.spec.budget.epsilon < spent() <= house.spec.budget.epsilon
    for folder in CORPORA:
        rows = pl.read_parquet(home().released / "notes" / folder / "data")
        assert rows.height > 0
        assert set(rows["label"].unique()) <= {"billing", "delivery"}


def test_a_killed_population_goes_on_with_the_same_rounds_under_one_charge(house, killed):
    assert killed["iteration"].unique().sort().to_list() == [1, 2]
    generations = pl.read_parquet(released("aug_pe/population", "generations.parquet"))
    assert generations["iteration"].unique().sort().to_list() == [1, 2, 3]
    assert generations.filter(pl.col("iteration") <= 2).equals(killed)
    assert len(charges_of("aug_pe/population")) == 1
    assert not list(home().sensitive.glob("notes/passes/*"))


def test_every_round_is_described_by_released_and_public_values(house):
    shown = house.metadata("notes", "aug_pe", "rounds")
    assert shown["dpsynth/rounds"].count("\n| ") == 3
    pictures = [name for name in shown if name.startswith("dpsynth/plot_")]
    assert len(pictures) == 2
    assert all(shown[name].startswith("![") for name in pictures)


def test_vectors_are_stored_with_what_the_ledger_charged_for_them(house):
    stored = DatasetVectors.load(released("epsvec/dataset_vectors", VECTORS_FILE).parent)
    planned = plan_dataset(house.spec).method("epsvec").plan
    assert event_from_json(stored.cost) == planned.charges["dataset_vectors"]
    assert stored.layers == (0, 1)


def test_more_rows_later_cost_nothing_and_vectors_stay_as_they_are(house):
    vectors = released("epsvec/dataset_vectors", VECTORS_FILE)
    before, entries, content = spent(), len(ledger().entries()), vectors.read_bytes()
    result = house.run(
        'key:"notes/epsvec/candidate_corpus" or key:"notes/epsvec/corpus"',
        run_config={"ops": {"notes__epsvec__candidate_corpus": {"config": {"rows": 40}}}},
    )
    assert result.success
    assert spent() == before
    assert len(ledger().entries()) == entries + 2  # The rows are recorded, and charge nothing.
    metadata = house.metadata("notes", "epsvec", "candidate_corpus")
    assert metadata["dpsynth/epsilon_charged"] == 0.0
    assert 30 < metadata["dagster/row_count"] <= 40
    assert house.run('key:"notes/epsvec/*"').success
    assert (spent(), vectors.read_bytes()) == (before, content)


@pytest.mark.parametrize(
    ("folder", "behind"),
    [
        ("ctcl", {"shared/topic_histogram", "ctcl/finetuned_generator"}),
        (
            "resampled",
            {
                "shared/topic_histogram",
                "dp_fine_tuning/finetuned_generator",
                "dp_fine_tuning/candidate_corpus",
            },
        ),
        ("epsvec", {"epsvec/fixed_shots", "epsvec/dataset_vectors"}),
        ("aug_pe", {"aug_pe/population"}),
    ],
)
def test_cards_name_every_release_behind_a_corpus(house, folder, behind):
    assert corpus_problems(home().released / "notes" / folder, ledger().entries()) == []
    label = house.metadata("notes", folder, "corpus")["dpsynth/privacy_label"]
    assert {f"notes/{each}" for each in behind} <= {each["asset"] for each in label["mechanisms"]}
    assert label["guarantee"]["epsilon"] > 0


@pytest.mark.parametrize(
    "asset",
    [
        "ctcl/finetuned_generator", "shared/topic_histogram", "epsvec/candidate_pool",
        "epsvec/fixed_shots", "epsvec/negative_set", "epsvec/dataset_vectors",
        "aug_pe/population", "aug_pe/rounds",
    ],
)  # fmt: skip
def test_metadata_holds_no_private_text(house, asset):
    shown = str(house.metadata("notes", *asset.split("/")))
    assert not [text for text in ("Brackenbury", "upset that", CANARY) if text in shown]


def test_a_downstream_model_is_scored_beside_the_corpora(house):
    table = json.loads((home().reports / "notes" / "metrics.json").read_text())["table"]
    rows = {row["name"]: row for row in table}
    model = rows["downstream_fine_tuning model"]
    assert 0 <= model["accuracy"] <= 1
    assert 0 < model["epsilon"] < house.spec.budget.epsilon
    assert model["rows"] is None
    assert {*CORPORA} <= set(rows)
    shown = house.metadata("notes", "evaluation", "evaluation_report")
    assert "dpsynth/accuracy/downstream_fine_tuning_model" in shown


@pytest.mark.parametrize(
    ("method", "stage", "free", "others"),
    [
        (
            "ctcl",
            "finetuned_generator",
            [
                {"rows": 500, "temperature": 0.7, "top_p": 0.8, "micro_batch_records": 4},
                {"rejection": {"judge": "likelihood"}},
            ],
            [{"learning_rate": 1e-3}],
        ),
        (
            "epsvec",
            "dataset_vectors",
            [{"rows": 500, "temperature": 0.7, "strengths": [2.0]}, {"engine": {"kind": "vllm"}}],
            [{"layers": [1]}, {"engine": {"model": "other/model"}}],
        ),
    ],
)
def test_other_settings_of_writing_ask_for_the_same_release(house, method, stage, free, others):
    def requested(changes):
        engine = {key: changes[key] for key in changes.keys() & {"engine"}}
        own = {key: changes[key] for key in changes.keys() - {"engine"}}
        fields = house.spec.model_dump(mode="json", exclude_none=True)
        fields |= {"methods": methods(**{method: own}), **engine}
        spec = type(house.spec).model_validate(fields)
        planned = plan_dataset(spec).method(method)
        request = stage_request(spec, planned, planned.plan.stage(stage), release="1")
        return request.parameters, request.event

    assert all(requested({}) == requested(changes) for changes in free)
    assert all(requested({}) != requested(changes) for changes in others)


def test_an_endpoint_is_refused_before_anything_is_charged(house):
    engine = {"kind": "openai", "model": "m", "base_url": "https://host/v1"}
    own = [each for each in methods() if each["method"] == "epsvec"]
    spec = private_spec(
        house.folder, name="diary", methods=own, engine=engine, cluster_histogram=None
    )
    plan = plan_dataset(spec)
    assert plan.releases == ()
    assert "private text" in plan.method("epsvec").plan.refusal


def package_of(house, folder, target, facts=None):
    plan = plan_dataset(house.spec)
    packager = Packager(spec=house.spec, plan=plan, ledger=ledger(), store=ReleaseStore())
    export_generator(packager, plan.method(folder), target, facts or HubFacts(), lambda events: [])
    return target


@pytest.fixture(scope="module")
def package(house, tmp_path_factory):
    """The generator of CTCL as a package, and the entries before it was written."""
    before = ledger().entries()
    target = tmp_path_factory.mktemp("packages") / "generator"
    return package_of(house, "ctcl", target, HubFacts(license="cc0-1.0")), before


def test_an_exported_generator_opens_in_transformers_and_continues_its_prompts(package):
    target, _ = package
    model = AutoModelForSeq2SeqLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = json.loads((target / PROMPTS_FILE).read_text())
    assert list(prompts) == ["billing", "delivery"]
    written = model.generate(**tokenizer(prompts["billing"], return_tensors="pt"), max_new_tokens=8)
    assert tokenizer.decode(written[0], skip_special_tokens=True)


def test_an_exported_generator_is_verified_and_costs_nothing(package):
    target, before = package
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


def cohort_of(house, spec=None):
    """The finished cohort as `dpsynth serve` opens it."""
    return serve._cohort(spec or house.spec, "declared")


@pytest.mark.parametrize(
    ("method", "paid"),
    [
        ("ctcl", {"notes/ctcl/finetuned_generator", "notes/shared/topic_histogram"}),
        ("epsvec", {"notes/epsvec/dataset_vectors"}),
    ],
)
def test_what_is_served_writes_rows_of_the_label_under_a_line_without_any_cost(house, method, paid):
    before, cohort = spent(), cohort_of(house)
    artifact = cohort.artifact(cohort.plan.method(method))
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
