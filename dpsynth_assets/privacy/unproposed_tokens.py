"""Share of draws that fall on tokens nobody proposes, from settings alone.

A private draw leaves every token a chance, for that is what makes it private. Tokens that no
context holds likely are alike in score, and there are as many of them as the vocabulary is large:
one of them is rarely drawn, all of them together may be drawn more often than text.
"""

import math

import numpy as np

_STEPS = 4001
_WIDEST = 9.0
"""Standard deviations of the leading token's own noise that the integral covers."""


def share_at_floor(tokens: int, gap: float) -> float:
    """Computes the share of softmax draws that fall on tokens at the floor of the scores.

    One token leads, the others lie `gap` below it: w = (A − 1)·e^(−gap), share w / (1 + w). Where
    several tokens lead, or some lie between, the floor's share is smaller.

    For the mean of logits that are clipped to [−c, c], a token outside of every context's reach
    has the score −c/τ and the leading one m/τ, m <= c: gap = (c + m)/τ. The median has the same
    bounds.

    Args:
        tokens: A >= 1, tokens among which one is drawn.
        gap: >= 0, distance of the leading score from the floor, in units of the temperature.

    Returns:
        A share in [0, 1).

    **Source** The softmax of Amin et al. 2024, Algorithm 1, line 15. They restrict draws to the
    1,024 publicly likeliest tokens at τ = 2.25 for this reason.
    """
    if tokens < 1 or not gap >= 0:
        raise ValueError(f"Expected tokens >= 1 and gap >= 0, got {tokens} and {gap}.")
    weight = (tokens - 1) * math.exp(-gap)
    return weight / (1.0 + weight)


def share_of_noise(tokens: int, lead: float, noise_std: float) -> float:
    """Computes how often the largest noise among unlikely tokens beats the leading token.

    One token has mean probability `lead`, the others about 0, and each gets its own Gaussian noise:
    1 − E[Φ(lead/σ + N)^(A−1)] over standard normal N, by the trapezoidal rule.

    Args:
        tokens: A >= 1, tokens among which the largest is chosen.
        lead: Mean probability of the leading token, in [0, 1].
        noise_std: σ > 0 of the noise on each mean probability.

    Returns:
        A share in [0, 1].

    **Source** Report-noisy-argmax of Tang et al. 2024, Algorithm 1.
    """
    if tokens < 1 or not 0 <= lead <= 1 or not noise_std > 0:
        raise ValueError(
            "Expected tokens >= 1, lead in [0, 1] and noise_std > 0, got "
            f"{tokens}, {lead} and {noise_std}."
        )
    own = np.linspace(-_WIDEST, _WIDEST, _STEPS)
    density = np.exp(-(own**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([_normal_cdf(lead / noise_std + each) for each in own]) ** (tokens - 1)
    leads = float(np.trapezoid(density * below, own))
    return min(1.0, max(0.0, 1.0 - leads))


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))
