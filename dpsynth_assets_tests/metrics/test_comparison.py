import numpy as np
import pytest

from dpsynth_assets.metrics.comparison import (
    Compared,
    compare,
    compare_all,
    gap_closed,
    gap_fields,
    interval_rule,
    smallest_decided,
)
from dpsynth_assets.metrics.metric import Estimate, interval, resampled_counts

REFERENCES = {"floor": "public only", "ceiling": "non-private"}
NOISE = np.random.default_rng(0).normal(size=(7, 400))


def _estimate(value, std=0.01, own=0, shared=0.0):
    """A score whose draws move by themselves and, `shared`, with all others."""
    return Estimate.around(value, std * NOISE[own] + shared * NOISE[5])


@pytest.mark.parametrize(
    ("metric", "first", "second", "verdict"),
    [
        ("mauve", 0.6, 0.4, "better"),
        ("mauve", 0.4, 0.6, "worse"),
        ("mauve", 0.60, 0.61, "undecided"),
        ("energy_distance", 0.6, 0.4, "worse"),
        ("energy_distance", 0.4, 0.6, "better"),
        ("accuracy", 0.5, 0.5, "undecided"),
    ],
)
def test_a_verdict_follows_the_interval_and_the_direction(metric, first, second, verdict):
    found = compare(metric, ("a", _estimate(first)), ("b", _estimate(second, own=1)))
    assert found.verdict == verdict
    assert found.low < found.difference < found.high


def test_differences_are_paired():
    """Two corpora that move together by ten times their difference are told apart."""
    first, second = _estimate(0.60, 0.01, 0, 0.5), _estimate(0.55, 0.01, 1, 0.5)
    assert compare("mauve", ("a", first), ("b", second)).verdict == "better"
    alone = Estimate.around(0.55, 0.5 * NOISE[4])
    assert compare("mauve", ("a", first), ("b", alone)).verdict == "undecided"


def test_one_distribution_is_called_different_one_time_in_twenty():
    generator = np.random.default_rng(1)
    wrong = 0
    for trial in range(300):
        held_out, first, second = generator.normal(size=(3, 80))
        counts = [resampled_counts(80, 200, 3 * trial + part) for part in range(3)]
        base = counts[0] @ held_out / 80
        pair = [
            Estimate.around(rows.mean() - held_out.mean(), drawn @ rows / 80 - base)
            for rows, drawn in ((first, counts[1]), (second, counts[2]))
        ]
        wrong += compare("mauve", ("a", pair[0]), ("b", pair[1])).verdict != "undecided"
    assert 3 <= wrong <= 32  # 15 expected.


def test_the_difference_that_is_said_to_be_decided_is_decided_four_times_in_five():
    generator = np.random.default_rng(2)
    spread = [Estimate.around(0.5, 0.01 * generator.normal(size=4000)) for _ in range(2)]
    told = smallest_decided([{"a": {"mauve": spread[0]}, "b": {"mauve": spread[1]}}])
    (difference,) = (float(word) for word in told.split() if word.startswith("0.0"))
    decided = 0
    for _ in range(400):
        shift = difference + 0.01 * generator.normal() - 0.01 * generator.normal()
        first = Estimate.around(0.5 + shift, spread[0].draws - spread[0].value)
        decided += compare("mauve", ("a", first), ("b", spread[1])).verdict == "better"
    assert 288 <= decided <= 352  # 320 expected.


def test_pairs_are_ordered_with_the_better_one_first():
    corpora = {
        "worst": {"energy_distance": _estimate(0.3)},
        "unscored": {},
        "best": {"energy_distance": _estimate(0.1, own=1)},
        "middle": {"energy_distance": _estimate(0.2, own=2)},
    }
    pairs = compare_all("energy_distance", corpora)
    found = [(p.first, p.second, p.verdict) for p in pairs]
    assert found == [
        ("best", "middle", "better"), ("best", "worst", "better"), ("middle", "worst", "better"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "score", "floor", "ceiling", "share"),
    [
        ("mauve", 0.5, 0.4, 0.6, 0.5),
        ("mauve", 0.3, 0.4, 0.6, -0.5),
        ("mauve", 0.7, 0.4, 0.6, 1.5),
        ("energy_distance", 0.2, 0.5, 0.1, 0.75),
        ("mauve", 0.5, 0.59, 0.6, None),
        ("mauve", 0.5, 0.6, 0.4, None),
        ("mauve", None, 0.4, 0.6, None),
        ("mauve", 0.5, None, 0.6, None),
        ("mauve", 0.5, 0.4, None, None),
    ],
)
def test_gap_closed_is_the_share_of_the_way_from_floor_to_ceiling(
    metric, score, floor, ceiling, share
):
    values = (score, floor, ceiling)
    parts = [None if v is None else _estimate(v, own=own) for own, v in enumerate(values)]
    found = gap_closed(metric, *parts)
    if share is None:
        assert found is None
    else:
        assert found.value == pytest.approx(share)
        assert found.low < share < found.high


def test_sentences_name_what_differs_and_what_the_data_cannot_decide():
    corpora = {
        "public only": {"mauve": _estimate(0.2), "accuracy": _estimate(0.50, 0.02)},
        "non-private": {"mauve": _estimate(0.7, own=1), "accuracy": _estimate(0.51, 0.02, 1)},
        "ctcl": {"mauve": _estimate(0.69, own=2), "accuracy": _estimate(0.52, 0.02, 2)},
    }
    told = Compared(corpora, "public only", "non-private").verdicts()
    assert told[0] == (
        "By MAUVE: non-private is better than public only; ctcl is better than public only; "
        "undecided: non-private and ctcl."
    )
    assert told[1].startswith("By accuracy: undecided: ")
    assert told[2].startswith("Undecided: by accuracy, the ceiling (non-private, 0.51 ± 0.0")
    assert len(told) == 3
    assert "resampled rows" in interval_rule("rows")
    assert "another run" not in interval_rule("seeds and rows")
    assert Compared({"ctcl": corpora["ctcl"]}).verdicts() == []


def test_a_ceiling_below_its_floor_is_said_and_gives_no_share():
    corpora = {"floor": {"mauve": _estimate(0.7)}, "ceiling": {"mauve": _estimate(0.2, own=1)}}
    assert "is worse than the floor" in Compared(corpora, "floor", "ceiling").verdicts()[1]
    fields = gap_fields(corpora["floor"], corpora["floor"], corpora["ceiling"])
    assert set(fields.values()) == {None}


def test_draws_are_moved_onto_the_score():
    estimate = Estimate.around(0.5, np.array([0.1, 0.2, 0.3]))
    assert estimate.draws.mean() == pytest.approx(0.5)
    assert estimate.std == pytest.approx(0.1)
    assert interval(np.arange(1001.0)) == pytest.approx((25.0, 975.0))


def test_counts_of_a_resample_sum_to_its_rows_and_repeat_by_seed():
    counts = resampled_counts(30, 7, 1)
    assert counts.shape == (7, 30)
    assert (counts.sum(axis=1) == 30).all()
    assert (counts == resampled_counts(30, 7, 1)).all()
    assert (counts != resampled_counts(30, 7, 2)).any()


def test_a_sentence_does_not_name_many_undecided_pairs():
    alike = {name: {"mauve": _estimate(0.5, own=own)} for own, name in enumerate("abcd")}
    best = {"best": {"mauve": _estimate(0.9, own=4)}}
    (told,) = Compared(alike | best).verdicts()
    assert told == "By MAUVE: best is better than a, b, c, d; undecided: every other pair."
    (told,) = Compared(alike).verdicts()
    assert told == "By MAUVE: undecided: every pair."


def _corpora(**mauve):
    values = {"public only": 0.2, "non-private": 0.6} | mauve
    return {
        name: {"mauve": _estimate(value, own=i)} for i, (name, value) in enumerate(values.items())
    }


def test_the_best_corpus_stands_with_its_share_of_the_gap_and_what_is_decided():
    corpora = _corpora(near=0.395, best=0.4, far=0.3)
    (told,) = Compared(corpora, **REFERENCES).told_of_private(["near", "best", "far"])
    assert told.startswith("Of the private corpora, best scores best (MAUVE 0.4, 50 % (")
    assert told.endswith(
        "it is better than far; its difference from near is not decided by these rows."
    )


def test_less_energy_distance_is_better_where_there_is_no_mauve():
    scores = {"a": 0.5, "b": 0.2, "floor": 0.3, "ceiling": 0.4}
    corpora = {
        n: {"energy_distance": _estimate(v, own=i)} for i, (n, v) in enumerate(scores.items())
    }
    best, below, above = Compared(corpora, "floor", "ceiling").told_of_private(["a", "b"])
    assert best.startswith("Of the private corpora, b scores best (energy distance 0.2); ")
    assert below.startswith("Worse than public text alone (floor): a by energy distance. ")
    assert above.startswith("Scores above the ceiling (ceiling): b by energy distance (better). ")


def test_one_corpus_or_none_is_compared_with_no_other():
    (told,) = Compared(_corpora(only=0.4), **REFERENCES).told_of_private(["only"])
    assert told.startswith("The only private corpus with a score is only: MAUVE 0.4, 50 % (")
    assert Compared(_corpora(), **REFERENCES).told_of_private([]) == []
    assert Compared({"none": {}}).told_of_private(["none"]) == []


def test_corpora_above_the_ceiling_or_below_the_floor_are_named_with_what_the_rows_decide():
    corpora = _corpora(above=0.7, level=0.605, between=0.3, low=0.195, below=0.1)
    private = list(corpora)[2:]
    _, floor, ceiling = Compared(corpora, **REFERENCES).told_of_private(private)
    assert floor.startswith("Worse than public text alone (public only): below by MAUVE. ")
    shown = "above by MAUVE (better), level by MAUVE (a difference within chance)"
    assert ceiling.startswith(f"Scores above the ceiling (non-private): {shown}. ")
    assert len(Compared(corpora).told_of_private(private)) == 1
