"""Room that is asked for before vectors are charged holds the vectors."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.epsvec.negatives import Negatives
from dpsynth_assets.methods.epsvec.stages import NEGATIVES, SHOTS, VECTORS
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors
from dpsynth_assets.privacy.events import GaussianEvent, event_to_json

LABELS, LAYERS, WIDTH = ("x", "y"), (1, 2), 512
NOTHING_ELSE = 4 << 10
"""The heads of files."""


@pytest.mark.parametrize("texts", [1, 5])
def test_vectors_fit_into_the_room_of_their_stage(cases, tmp_path, texts):
    negatives, vectors = tmp_path / "negatives", tmp_path / "vectors"
    negatives.mkdir()
    vectors.mkdir()
    Negatives(
        texts=(("a",) * texts,) * len(LABELS),
        states=(np.zeros((texts, len(LAYERS), WIDTH)),) * len(LABELS),
        layers=LAYERS,
        clip_bounds=np.ones(len(LAYERS)),
        model="toy",
    ).save(negatives)
    DatasetVectors(
        directions=np.zeros((len(LABELS), len(LAYERS), WIDTH), dtype=np.float32),
        layers=LAYERS,
        labels=LABELS,
        clip_bounds=np.ones(len(LAYERS)),
        signal_over_noise=np.ones((len(LABELS), len(LAYERS))),
        model="toy",
        cost=event_to_json(GaussianEvent(noise_multiplier=1.0)),
    ).save(vectors)
    public = SimpleNamespace(released={NEGATIVES: SimpleNamespace(folder=negatives)})
    method = cases.method(cases.config())
    stages = {stage.name: stage for stage in method.stages()}
    room = room_of(method, stages[VECTORS], public)
    taken = sum(file.stat().st_size for file in vectors.iterdir())
    assert taken <= room.release + NOTHING_ELSE
    assert room.corpus > 0
    assert room_of(method, stages[SHOTS], public).release == 0
