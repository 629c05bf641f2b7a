"""Laws of a private training's plan: what it costs, what it needs, what the cache may change."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest

from dpsynth_assets.datasets import LanguageModelSpec, PublicDataSpec
from dpsynth_assets.methods import plan_cache
from dpsynth_assets.methods.base import priced, room_of
from dpsynth_assets.methods.fine_tuning import Ctcl, DownstreamFineTuning, DpFineTuning
from dpsynth_assets.methods.fine_tuning.config import CtclConfig, DownstreamConfig
from dpsynth_assets.methods.fine_tuning.private_training import passes_of
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.fine_tuning import sources
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of, filter_epsilon
from dpsynth_assets.privacy.calibration import TOLERANCE
from dpsynth_assets.privacy.events import GaussianEvent, PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.per_example import (
    GRADIENT_SLACK,
    PerExampleGradients,
    Products,
    most_in_company,
)
from dpsynth_assets.privacy.renyi import filter_order, renyi_divergence, zcdp_epsilon, zcdp_rho
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.fine_tuning.conftest import LANGUAGE_MODEL, terms_over
from dpsynth_assets_tests.privacy import ledger_cases

DELTA = 1e-5
CONFIG = CtclConfig(steps=20, expected_batch_size=10)


def worth(terms, share):
    """ε of a share of the cohort's ρ, as planning computes it."""
    return zcdp_epsilon(share * (1 - 1e-9) * zcdp_rho(terms.epsilon, terms.delta), terms.delta)


def budget(terms):
    return ledger_cases.make_terms(epsilon=terms.epsilon, delta=terms.delta)


def request(event, name="ctcl"):
    asset = f"visits/{name}/{STAGE}"
    return ledger_cases.make_request(cohort="visits", dataset="visits", asset=asset, event=event)


def test_the_stage_is_charged_for_all_its_steps_at_the_declared_probability(cases):
    made = Ctcl(CONFIG, cases.terms()).plan(4.0)
    assert made.charges == {STAGE: made.event}
    assert made.event == PoissonGaussianEvent(
        sampling_probability=10 / 40,
        noise_multiplier=made.parameters["noise_multiplier"],
        steps=20,
    )
    assert made.rows_estimate == CONFIG.rows


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("records", [40, 100_000])
def test_a_filtered_plan_fits_its_share_at_the_filters_order_and_alone(cases, share, records):
    terms = cases.terms(public_records=records)
    made = Ctcl(CONFIG, terms).plan(worth(terms, share))
    order = filter_order(terms.epsilon, DELTA)
    room = order * share * zcdp_rho(terms.epsilon, DELTA)
    less = replace(made.event, noise_multiplier=made.event.noise_multiplier / (1 + 2 * TOLERANCE))
    assert made.epsilon == epsilon_of([made.event], DELTA, "zcdp") <= worth(terms, share)
    assert renyi_divergence(made.event, order) <= room
    alone = epsilon_of([less], DELTA, "zcdp") > worth(terms, share)
    assert alone or renyi_divergence(less, order) > room


def test_shares_and_a_histogram_that_fill_a_budget_are_admitted_by_its_ledger(cases, tmp_path):
    terms = cases.terms(public_records=2_000)
    histogram = GaussianEvent(noise_multiplier=10.0)
    left = 1.0 - float(histogram.rho) / zcdp_rho(terms.epsilon, DELTA)
    first, second = (
        Ctcl(CONFIG, terms).plan(worth(terms, share * left)).event for share in (0.6, 0.4)
    )
    events = [histogram, first, second]
    assert filter_epsilon(events, DELTA, terms.epsilon) <= terms.epsilon
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    for number, event in enumerate(events):
        ledger.reserve(request(event, f"m{number}"), budget(terms))
    one_more = GaussianEvent(noise_multiplier=3.0)
    assert not ledger.preview(request(one_more, "one_more"), budget(terms)).admitted


@pytest.mark.parametrize(
    "changes",
    [
        {"relation": NeighboringRelation.ZERO_OUT},
        {"relation": NeighboringRelation.REPLACE_ONE},
        {"unit": PrivacyUnit(column="person", max_records=2)},
    ],
    ids=["zero-out", "replace-one", "two records a unit"],
)
@pytest.mark.parametrize("accountant", ["zcdp", "tight"])
def test_every_relation_and_unit_is_planned_within_its_target(cases, changes, accountant):
    made = Ctcl(CONFIG, cases.terms(accountant=accountant, **changes)).plan(4.0)
    assert (3.9 if accountant == "tight" else 0.0) < made.epsilon <= 4.0
    assert made.event.max_records_per_unit == changes.get("unit", PrivacyUnit()).max_records
    replaced = changes.get("relation") is NeighboringRelation.REPLACE_ONE
    assert made.event.replaced is replaced


def test_an_undeclared_number_of_records_is_refused_unless_a_probability_is_given(cases):
    terms = cases.terms(public_records=None)
    refused = priced(Ctcl(CONFIG, terms), 4.0)
    assert refused.event is None
    assert not refused.charges
    assert "public_facts.records" in refused.refusal
    assert "sampling_probability" in refused.refusal
    given = CtclConfig(steps=20, expected_batch_size=10, sampling_probability=0.125)
    made = Ctcl(given, terms).plan(4.0)
    assert made.event.sampling_probability == 0.125
    assert Ctcl(given, terms).batch_denominator == 10


def test_a_batch_of_more_than_all_records_is_all_records(cases):
    config = CtclConfig(steps=5, expected_batch_size=1000)
    declared = Ctcl(config, cases.terms())
    assert declared.sampling_probability == 1.0
    assert declared.batch_denominator == 40


def test_an_altered_cache_changes_the_charge_with_the_noise_and_overspends_nothing(cases, tmp_path):
    terms = cases.terms()
    Ctcl(CONFIG, terms).plan(worth(terms, 1.0))
    kept_files = {file: json.loads(file.read_text()) for file in home().plans.iterdir()}
    ((file, kept),) = [
        each for each in kept_files.items() if "training_noise_multiplier" in each[1]["key"]["call"]
    ]
    kept["value"] /= 10
    file.write_text(json.dumps(kept))
    made = Ctcl(CONFIG, terms).plan(worth(terms, 1.0))
    mechanism = made.stage(STAGE).mechanism
    assert mechanism.event() == made.event  # what is charged is what will be drawn
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    assert not ledger.preview(request(made.event), budget(terms)).admitted


def test_a_kept_document_of_something_else_is_computed_anew():
    assert plan_cache.remembered({"a": 1}, lambda: 0.1 + 0.2) == 0.1 + 0.2
    (file,) = home().plans.iterdir()
    file.write_text("{}")
    assert plan_cache.remembered({"a": 1}, lambda: 7) == 7
    assert plan_cache.remembered({"a": 1}, lambda: 8) == 7


def test_another_key_or_another_version_is_another_value(monkeypatch):
    assert plan_cache.remembered({"a": 1}, lambda: 1) == 1
    assert plan_cache.remembered({"a": 2}, lambda: 2) == 2
    monkeypatch.setattr(plan_cache, "_versions", lambda: dict.fromkeys(plan_cache.PACKAGES, "0"))
    assert plan_cache.remembered({"a": 1}, lambda: 3) == 3


# Adapters beside frozen layers


@pytest.mark.parametrize("name", ["ctcl", "dp_fine_tuning"])
def test_a_base_whose_generator_is_its_language_model_trains_adapters_in_integers(cases, name):
    config = bound_method(name, {"lora_rank": 2}, terms_over()).config
    assert (config.lora_rank, config.frozen_products, config.exact_sums) == (2, "int8", True)
    assert config.document_type == LANGUAGE_MODEL.domain
    plan = bound_method(name, {}, terms_over()).plan(2.0)
    assert plan.parameters["lora_modules"] == ["q_proj", "v_proj"]
    own = LANGUAGE_MODEL.model_copy(
        update={"language_model": LanguageModelSpec(kind="pretrained", model="a/b")}
    )  # Its layers may have other names.
    assert "lora_modules" not in bound_method(name, {}, terms_over(own)).plan(2.0).parameters
    named = {"kind": "pretrained", "model": "a/b"}
    small = PublicDataSpec(name="demo", conditional_generator=named)
    assert bound_method(name, {}, terms_over(small)).config.lora_rank is None


def test_what_is_trained_in_integers_is_planned_for_records_that_pass_alone(cases):
    method = bound_method("ctcl", {"steps": 20}, terms_over())
    assert method.plan(4.0).refusal is None
    assert method.training(4.0).most_in_company == 0
    assert passes_of(method.training(4.0)) == {"passes": "alone"}


def test_what_is_trained_in_integers_takes_as_long_as_the_decoder_needs_to_read(cases):
    """Kernels that read faster train faster; passes in floats follow from products in floats."""
    sizes = PublicSizes(
        text_tokens=40, documents=100, records=1000, label_texts=("a",), prompts=None,
        tokens_of=lambda words: len(words.split()), parameters={"public_language_model": 1e8},
    )  # fmt: skip
    terms = terms_over()
    integers, floats = (
        bound_method("dp_fine_tuning", {"frozen_products": products}, terms).plan(4.0)
        for products in ("int8", "float32")
    )
    whole, floating = (
        sum((stage.work(plan, sizes) for stage in plan.stages), start=Work())
        for plan in (integers, floats)
    )
    assert whole.read > floating.read == 0
    assert 0 < whole.trained < floating.trained


@pytest.mark.parametrize("name", ["ctcl", "dp_fine_tuning", "downstream_fine_tuning"])
def test_adapters_that_cannot_be_trained_as_declared_are_refused_in_the_plan(cases, name):
    settings = {"lora_rank": 4, "frozen_products": "int8"}
    refusal = priced(bound_method(name, settings, cases.terms()), 4.0).refusal
    assert re.search("Expected exact_sums: true .* got false", refusal)
    assert "\n" not in refusal


# Who asks for exact sums gets them, and a charge that says nothing is the charge it always was.

TRAINING = {"steps": 1, "expected_batch_size": 10, "max_document_tokens": 16}


@pytest.mark.parametrize(
    ("chosen", "products"),
    [({}, Products.NATIVE), ({"exact_sums": True}, Products.FLOAT64)],
    ids=["native", "exact"],
)
def test_the_setting_decides_how_clipped_gradients_are_added(
    chosen, products, cases, public, tmp_path, monkeypatch
):
    asked = []

    def opened(model, products, threads):
        asked.append(products)
        return PerExampleGradients(model, products, threads)

    monkeypatch.setattr(sources, "PerExampleGradients", opened)
    method = DownstreamFineTuning(DownstreamConfig(**TRAINING, **chosen), cases.terms())
    plan = method.plan(4.0)
    [stage] = plan.stages
    inputs, checkpoint = replace(public, public_records=None), CheckpointFolders(tmp_path / "c")
    stage.release(cases.private(), inputs, checkpoint, lambda *_: None)
    assert asked == [products]
    passes = stage.rests_on["gradients"]["passes"]
    assert passes == ("alone" if products is Products.FLOAT64 else "shared")
    assert plan.parameters.get("exact_sums", False) is (products is Products.FLOAT64)


def test_the_bound_that_is_kept_back_follows_from_public_numbers(cases):
    terms = cases.terms()

    def declared(**chosen):
        return DownstreamFineTuning(DownstreamConfig(**TRAINING, **chosen), terms)

    mates = declared().records_in_company
    assert mates == most_in_company(10, GRADIENT_SLACK)
    assert declared(exact_sums=True).records_in_company == 0
    assert declared(gradient_slack=0.1).records_in_company == 0  # Too much kept back: all alone.
    fine = declared(gradient_slack=1e-3)
    [stage] = DownstreamFineTuning(fine.config, terms).plan(4.0).stages
    assert stage.mechanism.record_bound == pytest.approx(1 / (1 + mates * 1e-3))
    assert stage.rests_on["gradients"] == {
        "passes": "shared",
        "gradient_slack": 1e-3,
        "most_in_company": mates,
    }
    assert declared().takes_slack_of_float32
    assert not fine.takes_slack_of_float32


@pytest.mark.parametrize(
    "chosen",
    [{"gradient_slack": 1e-4}, {"exact_sums": True}, {"frozen_products": "int8"}],
)
def test_a_choice_stands_in_the_charge_that_made_it_and_in_no_earlier_one(chosen):
    told = CtclConfig(**chosen).model_dump(mode="json")
    assert chosen.items() <= told.items()
    assert CtclConfig(**told) == CtclConfig(**chosen)
    assert not chosen.keys() & CtclConfig().model_dump(mode="json").keys()


# Whether a training runs follows from public settings, never from the length of some record.


POSITIONS = 64
TWO_STEPS = {"steps": 2, "expected_batch_size": 60, "max_document_tokens": POSITIONS}


@pytest.fixture(scope="session")
def learned_positions(language_model, tmp_path_factory):
    """A GPT-2 without room for a condition and a document of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder, tokenizer = tmp_path_factory.mktemp("gpt2"), language_model.tokenizer
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=POSITIONS,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_language_model(folder, device="cpu")


def of_lengths(private, lengths):
    """The same records, of which a few are longer."""
    texts = private.records["text"].to_list()
    for row, copies in enumerate(lengths):
        texts[row] = " ".join([texts[row]] * copies)
    return replace(private, records=private.records.with_columns(text=pl.Series(texts)))


LENGTHS = {"short": [], "one long": [40], "some": [40, 40, 1, 40]}
OF_POSITIONS = {**TWO_STEPS, "architecture": "decoder_only", "rows": 5}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DpFineTuning, OF_POSITIONS),
        (DownstreamFineTuning, {**TWO_STEPS, "max_document_tokens": 16}),
    ],
)
def test_a_model_trains_whatever_the_lengths_of_records(
    kind, settings, lengths, cases, public, learned_positions, checkpoint
):
    [stage] = kind(kind.config_type(**settings), cases.terms()).plan(4.0).stages
    inputs = replace(public, language_model=learned_positions, public_records=None)
    private = of_lengths(cases.private(), lengths)
    assert stage.release(private, inputs, checkpoint, cases.silent).value.files.is_dir()


# Room that is asked for before a charge holds what a training keeps and releases.

HEADS = 16 << 10
"""Names and settings in the heads of files."""
SMALL = {"steps": 2, "expected_batch_size": 10, "max_document_tokens": 24}
DOWNSTREAM = {"vocabulary": 3000, "width": 16, "feed_forward": 16}


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [(Ctcl, {}), (Ctcl, {"lora_rank": 2}), (DpFineTuning, {}), (DownstreamFineTuning, DOWNSTREAM)],
)
def test_weights_and_checkpoints_fit_into_the_room_of_the_plan(
    kind, changes, cases, public, checkpoint
):
    method = kind(kind.config_type(**SMALL, **changes), cases.terms())
    [stage] = method.plan(4.0).stages
    room = room_of(method, stage, public)
    release = stage.release(cases.private(), public, checkpoint, cases.silent)
    assert size(release.value.files) <= room.release + HEADS
    assert size(checkpoint.saved) <= room.kept + HEADS
    assert room.release <= 2 * size(release.value.files), "far more than is taken"


def test_the_corpus_is_counted_by_its_declared_rows(cases, public):
    few, many = (
        room_of(kind, kind.plan(4.0).stage(STAGE), public).corpus
        for kind in (Ctcl(Ctcl.config_type(**SMALL, rows=n), cases.terms()) for n in (10, 1000))
    )
    assert many == 100 * few > 1000 * 24 * 4
