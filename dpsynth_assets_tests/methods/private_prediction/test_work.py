"""What is counted beforehand is what the decoder counts when the passes run."""

import json
from dataclasses import replace

import pytest

from dpsynth_assets.methods.base import room_of
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.methods.work import PublicSizes
from dpsynth_assets.models.decoding.protocol import COUNTS
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    NAMES,
    MemoryPasses,
    make_planned,
)
from dpsynth_assets_tests.methods.private_prediction.test_methods import config_of, run

RECORDS = 64


def sizes(language_model, records=RECORDS):
    return PublicSizes(
        text_tokens=10, documents=100, records=records, label_texts=("x", "y"), prompts=None,
        tokens_of=lambda words: len(language_model.encode(words)),
    )  # fmt: skip


@pytest.mark.parametrize("finishes", ["drop", "finish_publicly"])
def test_counted_work_is_what_the_decoder_does(finishes, cases, endless_model):
    config = config_of("mean_uniform", batches_per_label=4, max_batches=8, on_exhaustion=finishes)
    before = COUNTS.copy()
    plan, _ = run(
        "mean_uniform", cases, endless_model, private=cases.private(RECORDS), config=config
    )
    done = COUNTS - before
    get_method("mean_uniform")(config, cases.terms())
    work = plan.stages[0].work(plan, sizes(endless_model))
    assert work.written == pytest.approx(done["written"], rel=0.15)
    assert work.steps == pytest.approx(2 * plan.tokens_per_batch, rel=0.25)


def test_batches_follow_declared_facts_alone(cases, endless_model):
    config = config_of("mean_clustered")
    method = get_method("mean_clustered")(
        config, cases.terms(public_records=None, has_cluster_histogram=True)
    )
    plan = method.plan(10.0)
    assert plan.refusal is None
    many, few = (plan.stages[0].work(plan, sizes(endless_model, records)) for records in (64, 16))
    assert many.written > few.written


# Room that is asked for before a charge holds what a draw keeps and releases.


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
