"""Laws of resampling: the released histogram as nearly as the rows allow, at no cost."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from dpsynth_assets.methods.fine_tuning import Resampled
from dpsynth_assets.methods.fine_tuning.config import ResampledConfig
from dpsynth_assets.methods.fine_tuning.resampled import choose_rows, quotas
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.privacy.events import is_post_processing

CELLS = st.lists(
    st.tuples(st.just(0.0) | st.floats(1e-9, 1), st.integers(0, 30)), min_size=1, max_size=12
)


@given(CELLS, st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_quotas_sum_to_the_rows_and_no_cell_gives_more_than_it_has(cells, part):
    shares, available = (np.array(column) for column in zip(*cells, strict=True))
    rows = int(part * available.sum())
    kept = quotas(shares, available, rows)
    assert kept.sum() == rows
    assert (kept >= 0).all()
    assert (kept <= available).all()
    short = available - kept > 0
    if (shares[short] > 0).any():  # then no unwanted cell was needed
        assert kept[shares == 0].sum() == 0


@given(CELLS)
@settings(max_examples=100, deadline=None)
def test_where_rows_abound_quotas_are_the_shares_within_one_row(cells):
    shares = np.array([share for share, _ in cells])
    if shares.sum() == 0:
        return
    shares /= shares.sum()
    kept = quotas(shares, np.full(len(shares), 1000), 100)
    assert np.abs(kept - 100 * shares).max() < 1


def test_what_one_cell_lacks_goes_to_the_others_in_proportion():
    kept = quotas(np.array([0.5, 0.3, 0.2]), np.array([10, 100, 100]), 60)
    assert kept.tolist() == [10, 30, 20]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_rows_are_chosen_without_replacement_and_by_quota(cells, seed):
    cells = np.array(cells)
    kept = np.bincount(cells, minlength=4) // 2
    chosen = choose_rows(cells, kept, seed)
    assert len(set(chosen.tolist())) == len(chosen)
    assert np.array_equal(np.bincount(cells[chosen], minlength=4), kept)
    assert np.array_equal(chosen, choose_rows(cells, kept, seed))


def test_every_row_of_a_cell_is_as_likely():
    cells, kept = np.zeros(6, dtype=int), np.array([3])
    counts = np.zeros(6)
    for seed in range(600):
        counts[choose_rows(cells, kept, seed)] += 1
    assert np.abs(counts - 300).max() < 60


def corpus(rows=400):
    words = ("harbour", "bakery", "museum", "nowhere")
    return pl.DataFrame(
        {
            "text": [f"row {i} about {words[i % 4]}" for i in range(rows)],
            "label": ["xy"[(i // 4) % 2] for i in range(rows)],
        }
    )


def resample(cases, public, rows, **changes):
    method = Resampled(ResampledConfig(corpus="other"), cases.terms())
    public = replace(public, corpora={"other": corpus()}, **changes)
    return method.write(public, rows, cases.silent)


def test_the_kept_rows_follow_the_histogram_and_come_from_the_corpus(cases, public):
    made = resample(cases, public, 80)
    assert made.rows.height == made.facts["rows"] == 80
    assert set(made.rows["text"]) <= set(corpus()["text"])
    assert made.facts["distance_after"] < 0.1 < made.facts["distance_before"]
    y_bakery = made.rows.filter((pl.col("label") == "y") & (pl.col("topic") == 1)).height
    assert y_bakery > 25  # 12 of about 26
    assert resample(cases, public, 80).rows.equals(made.rows)


@pytest.mark.parametrize("rows", [400, 10_000])
def test_all_rows_of_the_corpus_are_no_choice_among_them(cases, public, rows):
    assert resample(cases, public, 399).rows.height == 399
    with pytest.raises(ValueError, match=rf"fewer rows than the corpus .* \(400\), .* got {rows}"):
        resample(cases, public, rows)


def test_it_spends_nothing_and_says_what_it_builds_on(cases):
    method = Resampled(ResampledConfig(corpus="other"), cases.terms())
    plan = method.plan(0.0)
    assert is_post_processing(plan.event)
    assert not plan.charges
    assert not plan.stages
    assert plan.refusal is None
    assert method.stages() == ()
    assert method.corpora == ("other",)
    assert method.writing().follows_topics


def test_a_missing_corpus_is_named(cases, public):
    method = Resampled(ResampledConfig(corpus="gone"), cases.terms())
    with pytest.raises(ValueError, match="gone"):
        method.write(public, 10, cases.silent)
    with pytest.raises(TypeError, match="planned paid stage"):
        Stage(name="x", title="").release(None, public, None, cases.silent)
