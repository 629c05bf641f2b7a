"""Budgets of several kinds of secrets, and what the paper's comparison comes to."""

import numpy as np
import pytest

from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.secret_noise import (
    secret_count_distributions,
    secret_noise_std,
    shift_event,
)
from dpsynth_assets.privacy.secret_protection import poisson_binomial, posterior_of_events

ADD_REMOVE = NeighboringRelation.ADD_REMOVE
BOUNDS = [(1e-4, 1e-3), (1e-2, 5e-2), (0.1, 0.5)]
LAW = poisson_binomial([0.5, 0.3, 0.2])


def shared(bounds, distribution=LAW, **changes):
    settings = {"steps": 1, "relation": ADD_REMOVE, "noise_floor": 1e-3, **changes}
    return secret_noise_std(count_probabilities=distribution, bounds=bounds, **settings)


@pytest.mark.parametrize("steps", [1, 3])
def test_every_bound_holds_and_one_is_tight(steps):
    noise_std = shared(BOUNDS, steps=steps)
    event = shift_event(count_probabilities=LAW, noise_std=noise_std, steps=steps)
    shares = [posterior_of_events([event], p) / r for p, r in BOUNDS]
    assert max(shares) <= 1.0
    assert max(shares) == pytest.approx(1.0, rel=5e-3)


def test_the_noise_is_the_largest_that_a_bound_needs_alone():
    alone = max(shared([bound]) for bound in BOUNDS)
    assert shared(BOUNDS) == pytest.approx(alone, rel=1e-5)
    assert shared(BOUNDS[::-1]) == pytest.approx(shared(BOUNDS), rel=1e-5)


@pytest.mark.parametrize("bounds", [[], [(0.2, 0.1)]])
def test_what_promises_nothing_is_refused(bounds):
    with pytest.raises(ValueError, match="Expected"):
        shared(bounds)


def test_records_that_are_never_sampled_do_not_lengthen_a_law():
    chances = np.array([0.0, 0.5, 0.0, 1.0])
    (distribution,) = secret_count_distributions(chances, [np.arange(4)])
    assert distribution == pytest.approx([0.0, 0.5, 0.5])
