"""Room that is asked for before an evolution holds every candidate of every round."""

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.evolution.aug_pe import AugPe
from dpsynth_assets.methods.evolution.method import STAGE
from dpsynth_assets.methods.evolution.population import read_generations
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.evolution.conftest import (
    make_config,
    make_private,
    make_public,
    make_terms,
)


def test_candidates_of_all_rounds_fit_into_the_room_of_the_plan(tmp_path, api):
    method = AugPe(make_config(population=40), make_terms())
    stage = method.plan(2.0).stage(STAGE)
    room = room_of(method, stage, make_public())
    release = stage.release(
        make_private(), make_public(), CheckpointFolders(tmp_path), lambda *_: None
    )
    files = [file for file in release.value.files.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= room.release
    rows = read_generations(release.value.files).height
    assert rows * method.config.max_new_tokens * 4 < room.release < rows * (1 << 16)
    assert room.kept == room.release
