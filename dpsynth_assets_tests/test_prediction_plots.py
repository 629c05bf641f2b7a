"""Pictures show the numbers they are named after; private ones stay in the report."""

import json
from functools import partial

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.orchestration.assets import evaluation
from dpsynth_assets.orchestration.assets.scoring import CorpusToScore
from dpsynth_assets.orchestration.resources.stores import ReleaseStore, SensitiveStore
from dpsynth_assets.report import plots
from dpsynth_assets.report.cards import released_folder

INTERNAL_FACTS = {
    "ex_post_epsilon": 4.0,
    "ex_post_epsilon_by_batch": [4.0, 1.0, 1.5, 2.0],
    "token_cost_by_position": {
        "count": [8, 6, 2],
        "mean": [0.5, 0.2, 0.1],
        "p10": [0.1, 0.1, 0.1],
        "p50": [0.4, 0.2, 0.1],
        "p90": [0.9, 0.3, 0.1],
    },
}
ROWS = pl.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
FACTS = {"private_tokens": 30, "public_tokens": 90, "rows": 4}


@pytest.fixture
def drawn(monkeypatch):
    """Axes of every picture in the order in which they were drawn."""
    axes = []
    make = plots.new_axes

    def remember(width, height):
        axes.append(make(width, height))
        return axes[-1]

    monkeypatch.setattr(plots, "new_axes", remember)
    return axes


# Data


def test_counts_before_and_after_rebalancing_stand_at_the_same_centre():
    facts = {
        "labels": ["x", ""],
        "centers": [[1, 3], [2]],
        "dp_counts": [[7, -2], [4]],
        "dp_counts_before": [[0, 5, -1, 6], [1, 1, 3, 2]],
    }
    counts = plots.rebalanced_counts(facts)
    assert list(counts) == ["x", "all"]
    before, after = counts["x"]
    assert before.tolist() == [6, 5, 0, -1]
    assert after[:2].tolist() == [-2, 7]
    assert np.isnan(after[2:]).all()
    assert [part[0] for part in counts["all"]] == [3, 4]


# Pictures


def test_pictures_have_titles_that_say_which_are_internal():
    internal = plots.internal_pictures({"median": INTERNAL_FACTS, "mean": {}})
    released = plots.released_pictures({"mean_svt": FACTS})
    assert list(internal) == ["batch_costs", "token_costs"]
    assert list(released) == ["private_tokens"]
    assert all("(internal)" in plots.TITLES[name] for name in internal)
    assert not any("(internal)" in plots.TITLES[name] for name in released)
    assert plots.internal_pictures({"mean": {"seconds": 1.0}}) == {}
    for nothing in ({}, {"rows": 5}, {"private_tokens": 0, "public_tokens": 0}):
        assert plots.released_pictures({"refused": nothing}) == {}


def test_the_histogram_of_batches_counts_each_once_and_marks_the_dearest(drawn):
    plots.batch_cost_plot({"median": plots.batch_costs(INTERNAL_FACTS)})
    (axes,) = drawn
    assert sum(bar.get_height() for bar in axes.patches) == 4
    assert [line.get_xdata()[0] for line in axes.lines] == [4.0]
    assert "50%" in axes.get_legend().get_texts()[0].get_text()


def test_every_kept_cluster_has_two_bars_and_dropped_ones_as_many_as_there_is_room(drawn):
    kept = plots._MOST_BARS + 10
    before, after = np.arange(kept + 50.0)[::-1], np.full(kept + 50, np.nan)
    after[:kept] = -1.0
    plots.rebalancing_plot({"x": (before, after), "y": (before[:3], after[:3])})
    bars = drawn[0].patches
    assert len(bars) == 2 * kept + 2 * 3
    assert [bar.get_height() for bar in bars[:3]] == before[:3].tolist()
    assert {bar.get_height() for bar in bars[kept : 2 * kept]} == {-1.0}
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == ["before", "after"]


def test_batches_add_up_to_one_in_the_cumulative_picture(drawn):
    plots.cumulative_plot({"mean": [15, 7, 9]}, "tokens", "batches")
    (line,) = drawn[0].lines
    assert line.get_xdata().tolist() == [0, 7, 9, 15]
    assert line.get_ydata().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


# In the report


def test_the_report_has_what_is_there_and_forgives_a_cleared_store(tmp_path, monkeypatch, own_home):
    store, releases = SensitiveStore(), ReleaseStore()
    store.write_internal("letters", "median_internal.json", json.dumps(INTERNAL_FACTS))
    folder = released_folder("letters", "median")
    folder.mkdir(parents=True)
    (folder / "privacy_label.json").write_text(json.dumps({"subject": {"reservation": "paid"}}))
    releases.save("paid", FACTS, ROWS)
    corpora = [
        CorpusToScore("median", ROWS, "corpus", {}),
        CorpusToScore("floor", ROWS, "floor", {}),
    ]
    made = partial(evaluation._of_methods, "letters", corpora, store)
    costs = ["batch_costs", "token_costs"]
    assert list(made(releases)) == [*costs, "private_tokens"]
    monkeypatch.setenv("DPSYNTH_STORE_URL", str(tmp_path / "cleared"))
    assert list(made(ReleaseStore())) == costs
