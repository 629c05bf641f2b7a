"""Membership tests: does a release reveal whether planted records were in the data?

m canaries are each put in by a fair coin of its own, all in one run. Each moves what is released as
far as a record can, in a direction that no other canary moves, so that one run is m trials. The
attacker knows everything but the coins. From what was released he scores each canary, and guesses
that those above the mean score were in. That is read twice:

- *The share of right guesses* is compared with the largest that the charge allows. For two
  neighbours P and Q a guess of a fair coin is right with probability at most (1 + TV(P, Q)) / 2,
  and δ at ε = 0 of the charged event bounds TV. Canaries that move different numbers, each with
  noise of its own, are independent trials: given all scores the coins are independent, so that no
  rule that sees scores alone, as this one does, is right more often than m such guesses are. p is
  the chance that they are right as often. It is nearly uniform where a canary is the worst case and
  the charge is exact, and larger elsewhere.
- *ε is bounded from below* by the surest guesses. This proves less, but holds for any mechanism,
  also where one canary moves the score of another.

**Source** Steinke, Nasr, Jagielski 2023, Privacy auditing with one training run, Theorem 2.1. For
δ we add the chance that any canary is an exception, m δ, to the chance of error (`prove`).
"""

from functools import cache

import numpy as np

from dpsynth_assets.attacks.audits.audit import FALSE_ALARM, Finding, lower_rate
from dpsynth_assets.attacks.reconstruction import INTERVAL, prove
from dpsynth_assets.privacy.accounting import epsilon_of, privacy_profile
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.privacy.events import Event

CANARIES = 500
SURE = 100
"""Guesses that the bound on ε rests on: of the lowest scores and of the highest, half of each."""
DELTA = 1e-6
"""δ at which ε is stated."""


def fair_coins() -> np.ndarray:
    """Decides which canaries are put in: (CANARIES,) bool. They are no person's records."""
    return np.random.default_rng().random(CANARIES) < 0.5


def judge_scores(present: np.ndarray, scores: np.ndarray, charged: Event) -> Finding:
    """Compares what the scores of one run say of the coins with what was charged for it.

    Args:
        present: (m,) bool, which canaries were in.
        scores: (m,) from what was released, higher where a canary is likelier to have been in.
        charged: Event of the release.

    Returns:
        Share of right guesses, allowed and proven at `FALSE_ALARM`. p, the ε that is proven and the
        ε that is charged are in the note, and in `measured` as `p`, `proven` and `charged`.
    """
    from scipy import stats

    allowed, epsilon = _charged(charged)
    canaries, right = len(scores), int(((scores > scores.mean()) == present).sum())
    p = float(stats.binom.sf(right - 1, canaries, allowed))
    ascending = present[np.argsort(scores, kind="stable")]
    sure = int((~ascending[: SURE // 2]).sum() + ascending[-SURE // 2 :].sum())
    proven = prove(sure, SURE, 0.5, 1.0 - INTERVAL - canaries * DELTA)
    return Finding(
        claimed=allowed,
        observed=float(lower_rate(np.array([right]), canaries, FALSE_ALARM)[0]),
        note=(
            f"{right} of {canaries}, p = {rounded_down(p, '.2g')}; ε >= "
            f"{rounded_down(proven, '.3g')} at {INTERVAL:.0%}, {rounded_up(epsilon, '.3g')} charged"
        ),
        measured={"p": p, "proven": proven, "charged": epsilon},
    )


@cache
def _charged(event: Event) -> tuple[float, float]:
    """The largest share of right guesses, and the ε at DELTA, that an event allows."""
    (gap,) = privacy_profile([event], [0.0], "tight")
    return (1.0 + gap) / 2.0, epsilon_of([event], DELTA, "tight")
