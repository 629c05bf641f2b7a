"""Room that is asked for before a charge holds what a draw keeps and releases."""

import json
from dataclasses import replace

import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    HISTOGRAM,
    NAMES,
    MemoryPasses,
)

SETTINGS = {
    "expected_batch_size": 8,
    "clip_bound": 2.0,
    "max_document_tokens": 8,
    "max_example_tokens": 8,
    "max_batches": 6,
    "min_tokens_for_new_document": 3,
}


def planned(name, cases, **changes):
    kind = get_method(name)
    svt = {"max_tokens_per_batch": 30, "svt_noise_scale": 20.0} if name == "mean_svt" else {}
    config = kind.config_type(**(SETTINGS | svt | changes))
    method = kind(config, cases.terms(accepts_ex_post=True, public_records=None))
    plan = method.plan(6.0)
    assert plan.refusal is None
    return method, plan


def inputs(cases, model):
    return cases.public(model, cluster_centers=cases.centers(), cluster_histogram=HISTOGRAM)


@pytest.mark.parametrize("name", NAMES)
def test_batches_that_never_end_fit_into_the_room_of_their_plan(name, cases, endless_model):
    method, plan = planned(name, cases)
    public, passes = inputs(cases, endless_model), MemoryPasses()
    room = room_of(method, plan.stages[0], public)
    release = cases.release(method, plan, replace(cases.private(64), passes=passes), public)
    assert len(json.dumps(passes.kept)) <= room.kept
    assert len(json.dumps(release.value.rows.to_dicts())) <= min(room.release, room.corpus)


def test_room_follows_the_batches_that_can_be_and_not_a_limit_that_none_reaches(
    cases, language_model
):
    public = inputs(cases, language_model)

    def room(**changes):
        method, plan = planned("mean_clustered", cases, **changes)
        return room_of(method, plan.stages[0], public).release

    assert room(max_batches=1_000_000) == room(max_batches=8)  # 62 released records, in eights.
    assert room(max_batches=2) == room(max_batches=8) / 4
