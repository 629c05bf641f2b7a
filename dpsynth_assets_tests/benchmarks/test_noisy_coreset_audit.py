"""Attacks on the noisy coreset: its audit, counts alone, and a record that redirects others.

False alarm: at most 1e-6 for each statistical test. About 6 s of CPU.
"""

import numpy as np
import pytest
from dp_kmeans import coreset_audit
from dp_kmeans.noisy_coreset import CoresetMechanism

from dpsynth_assets.privacy.guarantees import NeighboringRelation

ADD_REMOVE = NeighboringRelation.ADD_REMOVE
LEVELS = 8


def mechanism(count_noise):
    return CoresetMechanism(
        hyperplanes=np.eye(LEVELS),
        count_noise_std=count_noise,
        sum_noise_std=1e6,  # so that counts alone tell
        branch_count=1.0,
        keep_count=1.0,
        relation=ADD_REMOVE,
    )


@pytest.mark.statistical
def test_the_claim_survives_its_audit():
    result = coreset_audit.AUDIT.run()
    assert result.passed, result


@pytest.mark.statistical
@pytest.mark.parametrize("bug", coreset_audit.AUDIT.planted, ids=str)
def test_a_planted_bug_is_noticed(bug):
    result = coreset_audit.AUDIT.run(bug)
    assert not result.passed, result
