"""Attacks on the noisy coreset: its audit, counts alone, and a record that redirects others.

False alarm: at most 1e-6 for each statistical test. About 6 s of CPU.
"""

import numpy as np
import pytest
from dp_kmeans import coreset_audit
from dp_kmeans.noisy_coreset import CoresetMechanism

from dpsynth_assets.attacks.audits.audit import audit_scores, event_curve
from dpsynth_assets.attacks.audits.ledger_rules import seeded_everywhere
from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation

ADD_REMOVE = NeighboringRelation.ADD_REMOVE
LEVELS = 8
LEAVES = 1 << LEVELS


def corners(rows):
    places = np.arange(LEVELS)[::-1]
    return np.where(np.asarray(rows)[:, None] >> places & 1, 0.1, -0.1)


def mechanism(count_noise):
    return CoresetMechanism(
        hyperplanes=np.eye(LEVELS),
        count_noise_std=count_noise,
        sum_noise_std=1e6,  # so that counts alone tell
        branch_count=1.0,
        keep_count=1.0,
        relation=ADD_REMOVE,
    )


def leaf_counts(count_noise, releases):
    """(releases · LEAVES / 2, 2) counts of leaves with a canary and of leaves without."""
    records = corners([*np.repeat(np.arange(LEAVES), 40), *range(0, LEAVES, 2)])
    drawn = [mechanism(count_noise).release(records).value.weights for _ in range(releases)]
    return np.concatenate(drawn).reshape(-1, 2)


@pytest.mark.statistical
def test_the_claim_survives_its_audit():
    result = coreset_audit.AUDIT.run()
    assert result.passed, result


@pytest.mark.statistical
@pytest.mark.parametrize("bug", coreset_audit.AUDIT.planted, ids=str)
def test_a_planted_bug_is_noticed(bug):
    result = coreset_audit.AUDIT.run(bug)
    assert not result.passed, result


def test_no_published_seed_brings_the_noise_back():
    runs = []
    for _ in range(2):
        with seeded_everywhere():
            released = coreset_audit.mechanism().release(coreset_audit.fillers())
            runs.append(released.value.weights)
    assert not np.array_equal(*runs)


@pytest.mark.statistical
def test_counts_alone_stay_within_the_claim_of_all_levels():
    scores = leaf_counts(2.0, 12)
    claim = event_curve([mechanism(2.0).event])
    assert audit_scores(scores[:, 0], scores[:, 1], claim).passed


@pytest.mark.statistical
def test_counts_with_half_their_noise_are_caught():
    # Planted bug: the last level's noise is half of what its charge says.
    scores = leaf_counts(0.5 * 2.0, 64)
    claim = event_curve([GaussianEvent(noise_multiplier=2.0)])
    assert not audit_scores(scores[:, 0], scores[:, 1], claim).passed


def test_no_record_changes_where_another_goes():
    # An assignment to centres that move with the records they get would (errata B-004.9).
    generator = np.random.default_rng(0)
    planes, rest = generator.normal(size=(6, 12)), generator.normal(size=(300, 12))
    tree = CoresetMechanism(
        hyperplanes=planes,
        count_noise_std=1.0,
        sum_noise_std=1.0,
        branch_count=1.0,
        keep_count=1.0,
        relation=ADD_REMOVE,
    )
    alone = tree._sides(tree._lattice.clip(rest, 1.0))
    for size in (1e-9, 1.0, 1e12):
        crowded = np.concatenate([size * generator.normal(size=(5, 12)), rest])
        assert (tree._sides(tree._lattice.clip(crowded, 1.0))[5:] == alone).all()
