"""Room that is asked for before a charge holds what a training keeps and releases."""

import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.fine_tuning import Ctcl, DownstreamFineTuning, DpFineTuning
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE

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
