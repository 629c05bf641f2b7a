"""Released generators written from by an engine or a judge: same cells, no new charge."""

from dataclasses import replace

import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.base import REJECTION
from dpsynth_assets.methods.fine_tuning import Ctcl, DpFineTuning
from dpsynth_assets.methods.fine_tuning.config import (
    ROWS_PER_FORWARD,
    CtclConfig,
    DpFineTuningConfig,
    GeneratorConfig,
)
from dpsynth_assets.methods.fine_tuning.writing import GeneratorWeights, open_writer
from dpsynth_assets.methods.inputs import Released
from dpsynth_assets.methods.rejection_sampling import RejectionSettings
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.row_rules import TextForm
from dpsynth_assets_tests.methods.test_text_form import DECLARED

SMALL = {"steps": 1, "expected_batch_size": 10, "max_document_tokens": 24, "rows": 12}
CONFIG = GeneratorConfig(max_document_tokens=16)
CONDITIONS = ["Document Type: note", "Keywords: bakery", "Document Type: note", ""]


@pytest.fixture
def folders(generator, language_model):
    return {"encoder_decoder": generator.source, "decoder_only": language_model.source}


def corpus(cases, public, method, config, folder, **terms):
    released = Released(reservation="r", facts={}, folder=folder)
    bound = method(config, cases.terms(**terms))
    return bound.write(replace(public, released={STAGE: released}), config.rows, cases.silent)


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


def test_documents_of_released_weights_end_with_the_tokenizers_end_token(folders):
    generator = load_conditional_generator(folders["decoder_only"], device="cpu")
    end = generator.encoder.end_token_id
    assert end == generator.tokenizer.eos_token_id
    weights = GeneratorWeights(folders["decoder_only"], end_token_id=end)
    assert weights.end_token_id == end


def test_a_served_generator_writes_records_of_the_declared_schema(opened):
    with opened(form=TextForm(DECLARED)) as writer:
        rows = writer.texts(CONDITIONS, 3, max_new_tokens=80)
        cut = writer.texts(CONDITIONS, 3, max_new_tokens=4)
    assert all(map(writer.form.read, rows))
    assert cut == [""] * 4


@pytest.mark.parametrize(
    "engine",
    [
        EngineSpec(kind="vllm"),
        EngineSpec(kind="openai", model="m", base_url="https://host/v1"),
    ],
)
def test_an_encoder_decoder_is_written_here_and_says_so(cases, public, folders, engine):
    told = []
    cases.silent = lambda _share, message: told.append(message)
    made = corpus(
        cases, public, Ctcl, CtclConfig(**SMALL), folders["encoder_decoder"], engine=engine
    )
    assert made.facts["engine_kind"] == "transformers"
    assert told[0] == f"engine transformers writes: {engine.kind} cannot serve this model"
    assert made.rows.height + made.facts["places_left_empty"] == 12


def test_documents_stay_within_the_models_positions(opened):
    with opened() as writer:
        positions = writer.generator.config.max_position_embeddings
        assert writer.texts(["Document Type: note"], 3, max_new_tokens=positions)


def test_a_judged_corpus_keeps_cells_and_tells_acceptance(cases, public, folders):
    config = DpFineTuningConfig(**SMALL, architecture="decoder_only")
    judged = config.model_copy(
        update={
            "rejection": RejectionSettings(
                judge="likelihood", rules=(), lowest_quantile=0.3, rounds=12
            )
        }
    )
    folder = folders["decoder_only"]
    plain = corpus(cases, public, DpFineTuning, config, folder)
    kept = corpus(cases, public, DpFineTuning, judged, folder)
    assert kept.facts["judge"] == "likelihood"
    assert 0 < kept.facts["acceptance_rate"] <= 1
    assert kept.facts["rows"] == 12 - kept.facts["places_left_empty"]
    assert kept.facts["mean_score_accepted"] >= kept.facts["threshold_lowest"]
    if kept.rows.height == plain.rows.height == 12:
        assert kept.rows["label"].equals(plain.rows["label"])
    assert set(kept.rows["text"]) & set(plain.rows["text"])  # the first round is the same


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
    fixed = [
        {k: v for k, v in plan.parameters.items() if k not in plan.free_settings | {REJECTION}}
        for plan in (one, two)
    ]
    assert fixed[0] == fixed[1]
