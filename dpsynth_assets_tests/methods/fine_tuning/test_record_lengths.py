"""Whether a training runs follows from public settings, never from the length of some record."""

from dataclasses import replace

import polars as pl
import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.fine_tuning import Ctcl, DownstreamFineTuning, DpFineTuning
from dpsynth_assets.methods.fine_tuning.config import DownstreamConfig, DpFineTuningConfig
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders

POSITIONS = 64
TRAINING = {"steps": 2, "expected_batch_size": 60, "max_document_tokens": POSITIONS}


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
    return PrivateInputs(
        records=private.records.with_columns(pl.Series("text", texts)),
        embeddings=private.embeddings,
    )


def trained(method, config, cases, public, folder, lengths):
    bound = method(config, cases.terms())
    [stage] = bound.plan(4.0).stages
    private = of_lengths(cases.private(), lengths)
    checkpoint = CheckpointFolders(folder)
    return stage.release(private, public, checkpoint, lambda *_: None).value.files


@pytest.mark.parametrize("lengths", [[], [40], [40, 40, 1, 40]], ids=["short", "one long", "some"])
def test_a_decoder_with_learned_positions_trains_whatever_the_lengths_of_records(
    lengths, cases, public, learned_positions, tmp_path
):
    config = DpFineTuningConfig(**TRAINING, architecture="decoder_only", rows=5)
    inputs = replace(public, language_model=learned_positions, public_records=None)
    assert trained(DpFineTuning, config, cases, inputs, tmp_path / "c", lengths).is_dir()


@pytest.mark.parametrize("lengths", [[], [40]], ids=["short", "one long"])
def test_the_downstream_model_trains_whatever_the_lengths_of_records(
    lengths, cases, public, tmp_path
):
    config = DownstreamConfig(**TRAINING | {"max_document_tokens": 16})
    inputs = replace(public, public_records=None)
    assert trained(DownstreamFineTuning, config, cases, inputs, tmp_path / "c", lengths).is_dir()


# Room that is asked for before a charge holds what a training keeps and releases.

HEADS = 16 << 10
"""Names and settings in the heads of files."""
SMALL = {"steps": 2, "expected_batch_size": 10, "max_document_tokens": 24}
DOWNSTREAM = {
    "vocabulary": 3000,
    "width": 16,
    "feed_forward": 16,
    "learning_rate": 1e-3,
    "task": "next_word",
}
METHODS = [
    (Ctcl, {}),
    (Ctcl, {"lora_rank": 2}),
    (DpFineTuning, {}),
    (DownstreamFineTuning, DOWNSTREAM),
]


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(("kind", "changes"), METHODS)
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
