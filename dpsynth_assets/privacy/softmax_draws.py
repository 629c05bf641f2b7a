"""Exact draws from softmax(scores): float64 where it decides for certain, integers where not.

An inverse CDF with one 53-bit uniform gives a token of probability p another probability by up to
2^-53, hence never draws one with p < 2^-54, and a neighbour that draws it gives everything away.
Here every token has exactly its probability, the rarest one as well. Shape letters: G rows of
scores, A tokens, U a uniform in [0, 1), x_i = (largest score − score i) / divisor >= 0,
w_i = exp(−x_i), C_i = w_0 + … + w_i, W the sum of all.
"""

from bisect import bisect_right
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.clipping import block_entries
from dpsynth_assets.privacy.cpu import map_on_cpu_threads
from dpsynth_assets.privacy.noise import secure_words

if TYPE_CHECKING:
    import torch

WORD_BITS = 64
"""Bits of one word of entropy. The first decides nearly always; others follow where it does not."""

_FIRST_DIGITS = 60
"""Decimal digits of the first exact attempt; each further word of the uniform adds some."""

_MORE_DIGITS = 40
"""More digits than a word has (19.3), so that weights stay finer than the uniform."""

_GUARD_DIGITS = 25
"""Digits beyond those kept: they hold the roundings of quotients up to 10^5."""

_LOG_OF_TEN = 2.302585092994046


def draw_tokens(private_scores: "torch.Tensor", divisor: Fraction | int = 1) -> np.ndarray:
    """Draws (G,) indices: row g exactly from P(i) ∝ exp(private_scores[g, i] / divisor).

    Args:
        private_scores: (G, A) floats, left as they are; every entry stands for the number it is.
            −inf has probability zero. A caller with a proof about sums passes them undivided, with
            what they are to be divided by, so that no rounding comes between.
        divisor: A positive rational number, public.

    Raises:
        ValueError: If a row has NaN, +inf or no finite score.

    **Privacy** The distribution is the softmax itself: no rounding is left to be charged, for any
    token (`tokens_from_words` has the proof). Where float64 does not decide, a draw takes longer;
    running time is outside the guarantee.
    """
    return tokens_from_words(private_scores, divisor, secure_words)


def tokens_from_words(
    private_scores: "torch.Tensor",
    divisor: Fraction | int,
    words: Callable[[int], np.ndarray],
) -> np.ndarray:
    """Computes the tokens that given words of entropy make; `draw_tokens` gives it fresh ones.

    Args:
        private_scores: As in `draw_tokens`.
        divisor: As in `draw_tokens`.
        words: Returns this many uint64; asked for G, then for one more where a row needs it.

    **Privacy** A row's words are the leading bits of a uniform U, and its token is the i with
    C_(i-1) <= U W < C_i. Float64 decides where the answer is safe. With u = 2^-53: a computed
    weight is off by 1.1 u (three roundings of x, and x e^-x <= .37) and by four units in the last
    place of exp, a sum of A weights by A u of it in any order, so each C_i is within
    (2.1 A + 8) u W of the truth. U W and C_i are apart by more than their errors where the computed
    numbers are apart by (A + 16) 2^-50 of the sum, hence the exact token is the computed one.
    Anywhere else C_i and W are bounded by integers, with ever more digits, and U gets more bits,
    until one token is left (`token_of_uniform`): with probability 1 that ends.
    """
    import torch

    rows, tokens = private_scores.shape
    first = words(rows)
    drawn, safe = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
    device = private_scores.device.type
    together = max(1, block_entries(device) // max(1, tokens))

    def draw(part: slice) -> None:
        uniforms = first[part] * 2.0**-WORD_BITS
        scores = private_scores[part].to(torch.float64)
        drawn[part], safe[part] = _float_tokens(scores, float(divisor), uniforms)

    parts = [slice(start, start + together) for start in range(0, rows, together)]
    map_on_cpu_threads(draw, parts, private_scores.numel() if device == "cpu" else 0)
    for row in np.flatnonzero(~safe):
        own = private_scores[row].to(torch.float64).cpu().numpy()
        drawn[row] = _exact_token(own, Fraction(divisor), int(first[row]), words)
    return drawn


def _float_tokens(
    scores: "torch.Tensor", divisor: float, uniforms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Computes (g,) tokens in float64, and (g,) bool whether the exact token must be the same.

    It is where U W less the margin and U W plus the margin are found in one cell. Bisection ends
    between two entries of which the first is not above what is looked for and the second is, also
    where a device's sums do not ascend. NaN, and what lies beyond the last entry, end behind it.
    """
    import torch

    weights = (scores - scores.amax(dim=1, keepdim=True)).div_(divisor).exp_()
    reached = torch.cumsum(weights, dim=1, out=weights)
    total = reached[:, -1].cpu().numpy()
    margin = (scores.shape[1] + 16) * 2.0**-50
    targets = (uniforms[:, None] + (-margin, margin)) * total[:, None]
    places = torch.from_numpy(targets).to(scores.device)
    found = torch.searchsorted(reached, places, right=True).cpu().numpy()
    low, high = found[:, 0], found[:, 1]
    return low, (low == high) & (low < scores.shape[1])


def _exact_token(
    scores: np.ndarray, divisor: Fraction, word: int, words: Callable[[int], np.ndarray]
) -> int:
    """Finds the token of a uniform whose leading bits are `word`, with more bits as needed."""
    uniform, bits, digits = word, WORD_BITS, _FIRST_DIGITS
    while True:
        token = token_of_uniform(scores, divisor, uniform, bits, digits)
        if token is not None:
            return token
        uniform = uniform << WORD_BITS | int(words(1)[0])
        bits, digits = bits + WORD_BITS, digits + _MORE_DIGITS


def token_of_uniform(
    scores: np.ndarray, divisor: Fraction, uniform: int, bits: int, digits: int
) -> int | None:
    """Finds the token of every U in [uniform, uniform + 1) / 2^bits; None if not certain.

    Args:
        scores: (A,) float64.
        divisor: > 0.
        uniform: The leading bits of U.
        bits: How many.
        digits: Decimal digits to which weights are bounded.
    """
    low, high = _weights(scores, divisor, digits)
    reached_low, reached_high = list(accumulate(low)), list(accumulate(high))
    # C_i <= U W for every i before `token`, for all weights within their bounds
    token = bisect_right(reached_high, uniform * reached_low[-1] >> bits)
    if token == len(scores) or (uniform + 1) * reached_high[-1] > reached_low[token] << bits:
        return None
    return token


def _weights(scores: np.ndarray, divisor: Fraction, digits: int) -> tuple[list[int], list[int]]:
    """Bounds 10^digits · w_i from below and above by integers; 0 and 0 for −inf."""
    values, places = np.unique(scores, return_inverse=True)
    if not np.isfinite(values[-1]):  # NaN and +inf come last, and a lone −inf
        raise ValueError("Expected scores below +inf, one of them finite, got NaN or an infinity.")
    top, one = Fraction(float(values[-1])), 10**digits
    context = Context(prec=digits + _GUARD_DIGITS, Emax=10**9, Emin=-(10**9), traps=[])
    bounds = []
    for value in values.tolist():
        if value == -np.inf:
            bounds.append((0, 0))
        else:
            bounds.append(_weight((top - Fraction(value)) / divisor, one, digits, context))
    return [bounds[i][0] for i in places], [bounds[i][1] for i in places]


def _weight(exponent: Fraction, one: int, digits: int, context: Context) -> tuple[int, int]:
    """Bounds one · exp(−exponent) for an exponent >= 0.

    Below one unit where the exponent exceeds `digits` · ln 10; else it is smaller than 10^5, its
    rounded quotient is off by less than 10^(−digits − 19), and `Decimal.exp` rounds correctly.
    """
    if exponent == 0:
        return one, one
    if exponent > Fraction(_LOG_OF_TEN) * (digits + 1):
        return 0, 1
    quotient = context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator))
    nearest = int(context.scaleb(context.exp(quotient), digits))
    return max(0, nearest - 1), nearest + 2
