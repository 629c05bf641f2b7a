"""Laws of clustering by separation: its price, its scores, its draws, and what one record can move.

False alarm of each statistical test: at most 1e-6. About 10 s of CPU.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dp_kmeans import noisy_tree, separation, separation_audit
from dp_kmeans.agreement import agreement
from dp_kmeans.noisy_kmeans import fit_separation, principal_view
from dp_kmeans.separation import SeparationMechanism, separation_noise
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpsynth_assets.privacy import histogram
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import BoundedRangeEvent, GaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets_tests.benchmarks.test_noisy_kmeans import mixture

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = NeighboringRelation


def make(**changes):
    fields = {
        "depth": 2,
        "width": 2,
        "bins": 4,
        "cut_range": 1.0,
        "count_noise_std": 4.0,
        "sum_noise_std": 2.0,
        "branch_count": 4.0,
        "keep_count": 2.0,
        "relation": ADD_REMOVE,
    }
    return SeparationMechanism(**(fields | changes))


# Price


def test_every_level_pays_for_its_cuts_and_its_counts():
    *levels, sums = make(depth=3).event.events
    assert levels[::2] == [BoundedRangeEvent(eta=1.0, count=1)] * 3
    assert len(levels) == 6
    assert sums == GaussianEvent(noise_multiplier=2.0)


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_calibrated_noise_spends_its_target_and_no_more(relation, epsilon):
    eta, counts, sums = separation_noise(epsilon, 1e-6, 7, relation, max_records_per_unit=2)
    mechanism = make(
        depth=7,
        cut_range=eta,
        count_noise_std=counts,
        sum_noise_std=sums,
        relation=relation,
        max_records_per_unit=2,
    )
    assert 0.98 * epsilon < epsilon_of([mechanism.event], 1e-6, "zcdp") <= epsilon


# Scores


def by_hand(rows, dimension, cut, bins):
    left = sum(row[dimension] < cut for row in rows)
    near = sum(row[dimension] in (cut - 1, cut) for row in rows)
    return min(left, len(rows) - left) - near


RECORD = st.tuples(st.integers(0, 3), st.integers(0, 3))
BINNED = st.lists(RECORD, max_size=7)


def scores(rows, mechanism):
    binned = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return mechanism._scores(binned, np.zeros(len(binned), dtype=np.int64), 1)[0]


@given(BINNED)
def test_a_score_is_the_smaller_side_less_what_lies_beside_the_cut(rows):
    found = scores(rows, make())
    for dimension in range(2):
        for cut in range(1, 4):
            assert found[dimension, cut - 1] == by_hand(rows, dimension, cut, 4)


@given(BINNED, RECORD)
def test_one_record_moves_every_score_by_one_at_most(rows, record):
    moved = scores([*rows, record], make()) - scores(rows, make())
    assert np.abs(moved).max() <= 1


@settings(max_examples=60)
@given(
    BINNED,
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from(list(NeighboringRelation)),
)
def test_cuts_of_neighbours_are_within_the_charged_range(rows, record, relation):
    """By the exact probabilities: the largest log-likelihood ratio less the smallest one."""
    mechanism = make(cut_range=0.7, relation=relation)
    before = [*rows, (3, 0)] if relation is REPLACE_ONE else rows
    rate = 0.7 / (2 * mechanism.moved)
    logs = []
    for data in (before, [*rows, record]):
        weights = rate * scores(data, mechanism).ravel().astype(float)
        logs.append(weights - np.log(np.exp(weights).sum()))
    ratios = logs[1] - logs[0]
    assert ratios.max() - ratios.min() <= 0.7 + 1e-12


def test_records_of_other_nodes_do_not_count():
    binned, node = np.array([[0, 1], [3, 3], [2, 2]]), np.array([0, 1, -1])
    both = make()._scores(binned, node, 2)
    assert (both[0] == scores([(0, 1)], make())).all()
    assert (both[1] == scores([(3, 3)], make())).all()


@pytest.mark.statistical
def test_cuts_are_drawn_with_their_exact_probabilities():
    mechanism, rows = make(cut_range=3.0), [(0, 0)] * 3 + [(3, 1)] * 3
    trials = 60_000
    one = scores(rows, mechanism)
    dimension, edge = mechanism._chosen(np.repeat(one[None], trials, axis=0))
    weights = np.exp(1.5 * (one.ravel() - one.max()))
    drawn = np.bincount(dimension * 3 + edge - 1, minlength=6)
    assert stats.chisquare(drawn, trials * weights / weights.sum()).pvalue > 1e-6


def test_the_draw_divides_by_what_its_range_says(monkeypatch):
    asked = []

    def seen(values, divisor):
        asked.append(divisor)
        return np.zeros(len(values), dtype=np.int64)

    monkeypatch.setattr(separation, "draw_tokens", seen)
    make(cut_range=0.5, relation=REPLACE_ONE, max_records_per_unit=3)._chosen(np.zeros((1, 2, 3)))
    assert asked == [Fraction(2 * 2 * 3) / Fraction(0.5)]


# Tree


def test_a_wide_gap_is_where_a_node_is_cut(monkeypatch):
    for module in (histogram, noisy_tree):
        monkeypatch.setattr(module, "discrete_gaussian", lambda values, scale: list(values))
    records = np.array([[0.9, 0.0]] * 40 + [[-0.9, 0.0]] * 30)
    coreset = make(depth=1, cut_range=200.0).release(records).value
    assert sorted(coreset.weights.tolist()) == [30, 40]


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_the_cost_does_not_depend_on_what_came(rows):
    records = np.random.default_rng(0).normal(0, 0.5, (rows, 2))
    release = make().release(records)
    assert release.cost.event == make().event
    assert np.isfinite(release.value.points).all()


def test_groups_of_a_mixture_are_found_within_the_stated_cost():
    embeddings, member = mixture()
    view = principal_view(mixture(600, seed=1)[0], 8, dimensions=6)
    release = fit_separation(embeddings, view, clusters=8, epsilon=20.0, delta=1e-6)
    assert epsilon_of([release.cost.event], 1e-6, "zcdp") <= 20.0
    assert agreement(member, release.value.assign(embeddings)).v_measure > 0.6


@pytest.mark.parametrize(
    "changes", [{"depth": 0}, {"width": 0}, {"bins": 1}, {"cut_range": 0.0}], ids=str
)
def test_settings_outside_their_domain_are_refused(changes):
    with pytest.raises(ValueError, match="Expected"):
        replace(make(), **changes)


# Audit


@pytest.mark.statistical
def test_the_claim_survives_its_audit():
    result = separation_audit.AUDIT.run()
    assert result.passed, result


@pytest.mark.statistical
@pytest.mark.parametrize("bug", separation_audit.AUDIT.planted, ids=str)
def test_a_planted_bug_is_noticed(bug):
    result = separation_audit.AUDIT.run(bug)
    assert not result.passed, result
