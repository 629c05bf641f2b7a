"""Laws of membership tests: p is uniform where a claim is exact, and no ε is overstated."""

import numpy as np
import pytest
from scipy import stats

from dpsynth_assets.attacks.membership import CANARIES, SURE, fair_coins, judge_scores
from dpsynth_assets.attacks.reconstruction import INTERVAL
from dpsynth_assets.methods.audits import CANARY_AUDITS
from dpsynth_assets.privacy.events import GaussianEvent, PureEvent

pytestmark = pytest.mark.statistical
FAST = [audit for audit in CANARY_AUDITS if audit.name != "canaries-in-vectors"]


def allowed_distance(runs):
    """Kolmogorov's distance from the uniform law that p exceeds once in a million times."""
    return stats.kstwo.isf(1e-6, runs)


def test_p_is_uniform_for_a_gaussian_that_is_charged_exactly():
    def p():
        present = fair_coins()
        scores = present + np.random.default_rng().standard_normal(CANARIES)
        return judge_scores(present, scores, GaussianEvent(noise_multiplier=1.0)).measured["p"]

    assert stats.kstest([p() for _ in range(400)], "uniform").statistic < allowed_distance(400)


def test_epsilon_of_randomised_response_is_overstated_as_rarely_as_stated():
    epsilon, runs = 1.5, 400

    def proven():
        present, draw = fair_coins(), np.random.default_rng()
        kept = draw.random(CANARIES) < 1.0 / (1.0 + np.exp(-epsilon))
        scores = (present == kept) + 0.1 * draw.random(CANARIES)
        return judge_scores(present, scores, PureEvent(epsilon=epsilon, count=1)).measured["proven"]

    found = np.array([proven() for _ in range(runs)])
    assert (found > epsilon).sum() <= stats.binom.isf(1e-6, runs, 1.0 - INTERVAL)
    assert np.median(found) > 0.5  # 100 guesses that are right four times of five


@pytest.mark.parametrize("audit", FAST, ids=lambda audit: audit.name)
def test_p_is_uniform_over_runs_of_the_methods_own_code(audit):
    found = [audit.observe().measured for _ in range(20)]
    assert stats.kstest([each["p"] for each in found], "uniform").statistic < allowed_distance(20)
    assert all(0.5 < each["proven"] < each["charged"] for each in found)


def test_what_is_proven_of_sure_guesses_has_a_ceiling():
    present = fair_coins()
    found = judge_scores(present, present.astype(float), GaussianEvent(noise_multiplier=0.5))
    assert found.measured["p"] < 0.01
    assert found.measured["proven"] < np.log(SURE / -np.log(1 - INTERVAL))
    assert not found.passed
