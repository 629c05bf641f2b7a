"""Statistical audit of the released histogram against its whole claimed trade-off curve.

The threshold is chosen on half of the draws; Clopper-Pearson intervals on the other half refute
the claim. False alarm: at most 1e-6 for each audit if the claim holds.
"""

import numpy as np
import pytest
from scipy import stats

from dpsynth_assets.privacy.events import DiscreteLaplaceEvent, GaussianEvent
from dpsynth_assets.privacy.histogram import release_histogram
from dpsynth_assets.privacy.units import NeighboringRelation

FALSE_ALARM = 1e-6
DRAWS = 30_000


def draws(count, noise, scale, relation):
    release = release_histogram([count] * DRAWS, noise=noise, scale=scale, relation=relation)
    return release.value


def claimed_curve(event):
    """Largest true-positive rate that the event allows at a false-positive rate."""
    if isinstance(event, GaussianEvent):
        # The discrete law is the continuous one on a grid; 1% covers what rounding can add.
        mu = 1.01 / event.noise_multiplier
        return lambda rate: float(stats.norm.cdf(stats.norm.ppf(rate) + mu))
    epsilon = float(event.epsilon)
    return lambda rate: min(np.exp(epsilon) * rate, 1 - np.exp(-epsilon) * (1 - rate))


def excess(with_record, without_record, curve):
    """Proven true-positive rate minus the claimed one; positive refutes the claim."""
    half = DRAWS // 2
    with_first, with_second = with_record[:half], with_record[half:]
    out_first, out_second = without_record[:half], without_record[half:]
    thresholds = [t for t in np.unique(with_first) if 0.03 <= (out_first >= t).mean() <= 0.6]
    best = max(thresholds, key=lambda t: (with_first >= t).mean() - curve((out_first >= t).mean()))
    hits, alarms = int((with_second >= best).sum()), int((out_second >= best).sum())
    lower = stats.beta.ppf(FALSE_ALARM / 2, hits, half - hits + 1)
    upper = stats.beta.ppf(1 - FALSE_ALARM / 2, alarms + 1, half - alarms)
    return lower - curve(upper)


CLAIMS = [
    ("laplace", 1.0, DiscreteLaplaceEvent(scale=1.0), 1),
    ("gaussian", 2.0, GaussianEvent(noise_multiplier=2.0), 1),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "scale", "event", "shift"), CLAIMS)
def test_histogram_noise_is_as_hard_to_see_through_as_its_event_says(noise, scale, event, shift):
    relation = NeighboringRelation.ADD_REMOVE
    released = release_histogram([0], noise=noise, scale=scale, relation=relation)
    assert released.cost.event == event
    curve = claimed_curve(event)
    private = draws(shift, noise, scale, relation)
    assert excess(private, draws(0, noise, scale, relation), curve) <= 0


@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "scale", "event", "shift"), CLAIMS)
def test_halved_noise_is_caught(noise, scale, event, shift):
    # Planted bug: the event claims twice the noise that was drawn.
    relation = NeighboringRelation.ADD_REMOVE
    halved = max(scale / 2, 1.0) if noise == "gaussian" else scale / 2
    private = draws(shift, noise, halved, relation)
    assert excess(private, draws(0, noise, halved, relation), claimed_curve(event)) > 0


@pytest.mark.statistical
def test_replace_one_charged_as_add_remove_is_caught():
    # Planted bug: two records of a unit in one bin move it by two, the event says one.
    private = draws(2, "laplace", 1.0, NeighboringRelation.ADD_REMOVE)
    public = draws(0, "laplace", 1.0, NeighboringRelation.ADD_REMOVE)
    assert excess(private, public, claimed_curve(DiscreteLaplaceEvent(scale=1.0))) > 0
    honest = DiscreteLaplaceEvent(scale=1.0, sensitivity=2)
    assert excess(private, public, claimed_curve(honest)) <= 0
