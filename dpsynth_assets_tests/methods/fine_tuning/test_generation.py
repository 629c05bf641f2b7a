"""Laws of a fine-tuned generator: what is charged, what it learns from, and rows that are free."""

import json
from dataclasses import replace

import polars as pl
import pytest
import torch

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.fine_tuning import Ctcl, DpFineTuning, generators as generator_inputs
from dpsynth_assets.methods.fine_tuning.config import (
    ROWS_PER_FORWARD,
    CtclConfig,
    DpFineTuningConfig,
    GeneratorConfig,
)
from dpsynth_assets.methods.fine_tuning.generators import training_pairs
from dpsynth_assets.methods.fine_tuning.writing import open_writer
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.row_rules import TextForm
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets_tests.methods.test_text_form import DECLARED

SMALL = {"steps": 3, "expected_batch_size": 10, "max_document_tokens": 24, "rows": 12}


def train(cases, public, checkpoint, method=Ctcl, config=None, private=None, progress=None):
    bound = method(config or method.config_type(**SMALL), cases.terms())
    plan = bound.plan(4.0)
    release = plan.stage(STAGE).release(
        private or cases.private(), public, checkpoint, progress or cases.silent
    )
    return plan, release


def write(cases, public, folder, method=Ctcl, config=None, rows=12, **terms):
    bound = method(config or method.config_type(**SMALL), cases.terms(**terms))
    released = Released(reservation="r", facts={}, folder=folder)
    return bound.write(replace(public, released={STAGE: released}), rows, cases.silent)


@pytest.fixture
def folders(generator, language_model):
    return {"encoder_decoder": generator.source, "decoder_only": language_model.source}


def check_public(cases, public, method=Ctcl, **settings):
    bound = method(method.config_type(**SMALL, **settings), cases.terms())
    bound.plan(4.0).stage(STAGE).check(public)


def weights(generator):
    return {name: value.clone() for name, value in generator.model.state_dict().items()}


def test_the_release_costs_what_was_planned_and_loads_like_any_generator(cases, public, checkpoint):
    plan, release = train(cases, public, checkpoint)
    assert release.cost.guarantee is GuaranteeType.DP
    assert release.cost.event == plan.charges[STAGE]
    assert release.value.facts["steps"] == plan.event.steps
    assert release.value.facts["noise_multiplier"] == plan.event.noise_multiplier
    assert plan.stage(STAGE).mechanism.released_steps == 0  # Each run of a plan has its own.
    json.dumps(release.value.facts)
    loaded = load_conditional_generator(release.value.files, device="cpu")
    before, after = weights(public.conditional_generator), weights(loaded)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 2}])
def test_training_leaves_the_loaded_public_model_as_it_was(cases, public, checkpoint, changes):
    before = weights(public.conditional_generator)
    train(cases, public, checkpoint, config=CtclConfig(**SMALL, **changes))
    after = weights(public.conditional_generator)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_no_private_fact_is_told(cases, public, checkpoint):
    messages = []
    private = cases.private(37)
    _, release = train(
        cases, public, checkpoint, private=private, progress=lambda _, text: messages.append(text)
    )
    told = json.dumps(release.value.facts) + " ".join(messages)
    assert "public loss" in told
    assert "37" not in told.replace(str(release.value.facts), "").split()
    assert not release.value.internal
    assert "visit" not in repr(private)


def test_rows_follow_the_released_histogram_and_any_number_is_free(cases, public, folders):
    folder = folders["encoder_decoder"]
    few, many = (write(cases, public, folder, rows=rows) for rows in (26, 260))
    assert few.facts["rows"] + few.facts["places_left_empty"] == 26
    assert many.facts["rows"] + many.facts["places_left_empty"] == 260
    assert set(many.rows.columns) == {"text", "label", "topic"}
    y_bakery = many.rows.filter((pl.col("label") == "y") & (pl.col("topic") == 1)).height
    assert 0.3 < y_bakery / 260 < 0.6  # 12 of about 26
    assert not many.rows.filter((pl.col("label") == "x") & (pl.col("topic") == 1)).height
    again = write(cases, public, folder, rows=26)
    assert again.rows.equals(few.rows)


def test_a_histogram_of_other_labels_is_refused(cases, public, folders):
    other = {**public.topic_histogram, "labels": ["y", "x"]}
    with pytest.raises(ValueError, match="labels"):
        write(cases, replace(public, topic_histogram=other), folders["encoder_decoder"])


# Before the charge


def test_a_trial_has_two_lengths_and_the_longest_there_will_be(cases, public):
    inputs = Ctcl(CtclConfig(max_document_tokens=24), cases.terms()).inputs(public)
    pairs = generator_inputs.trial_pairs(known(cases), 24)
    short, long = inputs.encoded(inputs.open(), pairs)
    records = cases.private().records["text"].to_list()
    whole = public.conditional_generator.encoder.document_ids([" ".join(records)], 24)
    assert len(short.targets) < len(long.targets) == len(whole[0])
    assert len(short.inputs) < len(long.inputs)


def test_an_architecture_that_cannot_be_trained_fails_before_the_charge(cases, public, monkeypatch):
    def untrainable(*arguments, **settings):
        generator = generation_fresh(*arguments, **settings)
        generator.model.slope = torch.nn.BatchNorm1d(4)
        return generator

    generation_fresh = generator_inputs.load_conditional_generator
    monkeypatch.setattr(generator_inputs, "load_conditional_generator", untrainable)
    with pytest.raises(TypeError, match="batch normalisation at slope"):
        check_public(cases, public)


@pytest.mark.parametrize("missing", ["topic_model", "conditional_generator"])
def test_a_missing_artifact_fails_before_the_charge(cases, public, missing):
    with pytest.raises(ValueError, match=missing):
        check_public(cases, replace(public, **{missing: None}))


# Conditions


def known(cases, *, keywords=True, **changes):
    public = PublicInputs(language_model=None, topic_model=cases.topic_model())
    method = Ctcl(CtclConfig(document_type="visit report"), cases.terms(**changes))
    return method.conditioning(public, keywords=keywords)


def test_a_condition_names_type_label_and_the_keywords_of_the_records_topic(cases):
    pairs = training_pairs(cases.private(4), known(cases))
    assert pairs.documents[1] == "visit 1 to the bakery was fine"
    assert "Document Type: visit report" in pairs.conditions[1]
    assert "Label: why" in pairs.conditions[1]
    assert all(f"bakery{n}" in pairs.conditions[1] for n in range(10))
    assert "common0" in pairs.conditions[3]  # no topic fits
    assert "visit 1" not in repr(pairs)


def test_training_and_writing_say_the_same_of_a_cell(cases):
    pairs = training_pairs(cases.private(8), known(cases))
    assert set(pairs.conditions) == {
        known(cases).text(label, topic) for label, topic in ((0, 0), (1, 1), (0, 2), (1, 3))
    }


def test_without_keywords_a_condition_names_no_topic_and_needs_no_embedding(cases):
    private = PrivateInputs(records=cases.records(4))
    pairs = training_pairs(private, known(cases, keywords=False))
    assert len(set(pairs.conditions)) == 2
    assert "Keywords" not in "".join(pairs.conditions)


def test_one_label_is_no_condition(cases):
    plain = known(cases, keywords=False, labels=("",), label_texts=("",))
    assert plain.text(0, -1) == "Document Type: visit report"


def test_a_null_record_contributes_no_pair_and_moves_no_other(cases):
    whole = training_pairs(cases.private(8), known(cases))
    without = training_pairs(cases.private(8, null={3}), known(cases))
    pairs = list(zip(whole.conditions, whole.documents, strict=True))
    assert list(zip(without.conditions, without.documents, strict=True)) == pairs[:3] + pairs[4:]


# DP fine-tuning without topics


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize("lora_rank", [None, 2])
def test_both_architectures_train_whole_or_by_adapters(
    cases, public, checkpoint, architecture, lora_rank
):
    config = DpFineTuningConfig(**SMALL, architecture=architecture, lora_rank=lora_rank)
    private = PrivateInputs(records=cases.records(20))
    plan, release = train(cases, public, checkpoint, DpFineTuning, config, private)
    assert release.cost.event == plan.event
    corpus = write(cases, public, release.value.files, DpFineTuning, config)
    assert corpus.rows["topic"].unique().to_list() == [-1]
    labels = corpus.rows["label"].value_counts().height
    assert labels == 2
    assert load_conditional_generator(release.value.files).has_encoder is (
        architecture == "encoder_decoder"
    )


def test_dp_fine_tuning_declares_what_it_reads(cases):
    def bound(**settings):
        return DpFineTuning(DpFineTuningConfig(**settings), cases.terms())

    plain, keyed = bound(), bound(keywords=True)
    causal = bound(architecture="decoder_only")
    assert not plain.writing().follows_topics
    assert keyed.writing().follows_topics
    assert "topic_model" not in plain.public_inputs
    assert {"topic_model", "conditional_generator"} <= keyed.public_inputs
    assert "public_language_model" in causal.public_inputs
    assert not plain.stages()[0].needs_embeddings
    assert keyed.stages()[0].needs_embeddings
    assert Ctcl(CtclConfig(), cases.terms()).stages()[0].needs_embeddings


# Released generators written from by an engine or a judge: same cells, no new charge.

CONFIG = GeneratorConfig(max_document_tokens=16)
CONDITIONS = ["Document Type: note", "Keywords: bakery", "Document Type: note", ""]


@pytest.fixture
def opened(folders):
    """Opens the decoder for writing, through the engine that a dataset file declares."""

    def opens(engine=None, **how):
        engine = engine or EngineSpec(device="cpu")
        return open_writer(folders["decoder_only"], engine, CONFIG, device="cpu", **how)

    return opens


def test_an_engine_serves_the_released_folder_and_not_its_own_model(folders, opened):
    with opened(EngineSpec(model="some/other-model", device="cpu")) as writer:
        assert writer.kind == "transformers"
        assert isinstance(writer.engine, DecoderEngine)
        assert writer.engine.language_model.source == folders["decoder_only"]
        assert writer.engine._batch_rows == ROWS_PER_FORWARD
        first = writer.texts(CONDITIONS, 3)
        assert writer.texts(CONDITIONS, 3) == first
        assert first[0] != first[2]  # one condition, two places
        assert writer.texts(CONDITIONS, 4) != first


def test_a_served_generator_writes_what_its_weights_do(opened):
    """Greedy text equals the packed decoder's: same prompt, same end token."""
    with opened() as writer:
        alone = replace(writer, engine=None)
        ours, theirs = (
            each.texts(CONDITIONS, 3, top_p=1e-6, max_new_tokens=12) for each in (alone, writer)
        )
    assert [text.split("  ")[0] for text in theirs] == [text.split("  ")[0] for text in ours]


def test_a_served_generator_writes_records_of_the_declared_schema(opened):
    with opened(form=TextForm(DECLARED)) as writer:
        rows = writer.texts(CONDITIONS, 3, max_new_tokens=80)
        cut = writer.texts(CONDITIONS, 3, max_new_tokens=4)
    assert all(map(writer.form.read, rows))
    assert cut == [""] * 4


def test_an_encoder_decoder_is_written_here_and_says_so(cases, public, folders):
    told, engine = [], EngineSpec(kind="vllm")
    cases.silent = lambda _share, message: told.append(message)
    made = write(cases, public, folders["encoder_decoder"], engine=engine)
    assert made.facts["engine_kind"] == "transformers"
    assert told[0] == "engine transformers writes: vllm cannot serve this model"
    assert made.rows.height + made.facts["places_left_empty"] == 12


def test_documents_stay_within_the_models_positions(opened):
    with opened() as writer:
        positions = writer.generator.config.max_position_embeddings
        assert writer.texts(["Document Type: note"], 3, max_new_tokens=positions)


def test_a_judged_corpus_tells_acceptance(cases, public, folders):
    judge = {"judge": "likelihood", "rules": (), "lowest_quantile": 0.3, "rounds": 12}
    config = DpFineTuningConfig(**SMALL, architecture="decoder_only", rejection=judge)
    kept = write(cases, public, folders["decoder_only"], DpFineTuning, config)
    assert kept.facts["judge"] == "likelihood"
    assert 0 < kept.facts["acceptance_rate"] <= 1
    assert kept.facts["rows"] == 12 - kept.facts["places_left_empty"]
    assert kept.facts["mean_score_accepted"] >= kept.facts["threshold_lowest"]


@pytest.mark.parametrize("method", [Ctcl, DpFineTuning])
def test_a_judge_is_free_and_changes_nothing_a_paid_stage_depends_on(cases, method):
    plain, judged = (
        method(method.config_type(**SMALL, **chosen), cases.terms())
        for chosen in ({}, {"rejection": {"judge": "likelihood"}})
    )
    (stage,), (other,) = plain.stages(), judged.stages()
    assert stage.reads == other.reads == plain.writing().reads
    assert judged.writing().reads == other.reads | {"public_language_model", "public_corpus"}
    one, two = plain.plan(4.0), judged.plan(4.0)
    assert one.charges == two.charges
    assert one.stages[0].settings == two.stages[0].settings
