"""Room that is asked for before a charge holds what a draw keeps and releases."""

from dpsynth_assets.methods.base import room_of
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    make_planned,
)


def test_room_follows_the_batches_that_can_be_and_not_a_limit_that_none_reaches(
    cases, language_model
):
    public = cases.clustered(language_model)

    def room(**changes):
        method, plan = make_planned("mean_clustered", 6.0, **changes)
        return room_of(method, plan.stages[0], public).release

    assert room(max_batches=1_000_000) == room(max_batches=8)  # 62 released records, in eights.
    assert room(max_batches=2) == room(max_batches=8) / 4
