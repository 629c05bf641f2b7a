"""Room that is asked for before a charge holds what a draw keeps and releases."""

import json
from dataclasses import replace

import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    NAMES,
    MemoryPasses,
    make_planned,
)


@pytest.mark.parametrize("name", NAMES)
def test_batches_that_never_end_fit_into_the_room_of_their_plan(name, cases, endless_model):
    method, plan = make_planned(name, 6.0)
    public, passes = cases.clustered(endless_model), MemoryPasses()
    room = room_of(method, plan.stages[0], public)
    release = cases.release(method, plan, replace(cases.private(64), passes=passes), public)
    assert len(json.dumps(passes.kept)) <= room.kept
    assert len(json.dumps(release.value.rows.to_dicts())) <= min(room.release, room.corpus)


def test_room_follows_the_batches_that_can_be_and_not_a_limit_that_none_reaches(
    cases, language_model
):
    public = cases.clustered(language_model)

    def room(**changes):
        method, plan = make_planned("mean_clustered", 6.0, **changes)
        return room_of(method, plan.stages[0], public).release

    assert room(max_batches=1_000_000) == room(max_batches=8)  # 62 released records, in eights.
    assert room(max_batches=2) == room(max_batches=8) / 4
